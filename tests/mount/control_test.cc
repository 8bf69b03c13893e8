// The control files: .pool/ of each pool and .kvcachefs/ of the mount.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "fs/control/pool_stats.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kMiB = 1 << 20;

const std::vector<std::string> kWritable = {
    "size",       "policy",     "watermarks",  "entry_size",      "evict",
    "pinned_max", "spill",      "durability",  "admission",       "auto_prefetch",
    "prefetch",   "scrub",      "max_entries", "max_directories", "max_xattr_bytes",
    "max_xattrs", "user_share", "reset",       "forget_agent",    "leaf_first"};
const std::vector<std::string> kAnswering = {"match", "similar", "index"};  // of any user
const std::vector<std::string> kReadOnly = {"stats",    "stats.json", "numa",    "entries",
                                            "size_max", "users",      "settings"};

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class ControlTest : public SharedMount<ControlTest> {
 protected:
  static std::string control(std::string_view file) { return mount().control(file); }
  static std::string global(std::string_view file) {
    return mount().root() + "/.kvcachefs/" + std::string(file);
  }

  // The file takes the value and then reads as `reads`.
  static void takes(const std::string& file, const std::string& value, const std::string& reads) {
    EXPECT_EQ(error_name(write_once(mount().place_to_write(file), value)), "ok") << file << " = " << value;
    EXPECT_EQ(read_file(control(file)), reads + "\n") << file << " = " << value;
  }
  // The file refuses the value with EINVAL, the log says why, and nothing changes.
  static void refuses(const std::string& file, const std::string& value) {
    const std::string before = read_file(control(file));
    const size_t log_before = mount().log().size();
    EXPECT_EQ(error_name(write_once(mount().place_to_write(file), value)), "EINVAL")
        << file << " = " << value;
    EXPECT_EQ(read_file(control(file)), before) << file << " = " << value;
    EXPECT_TRUE(eventually([&] { return mount().log().size() > log_before; }))
        << "no reason in the log: " << value;
  }
};

TEST_F(ControlTest, FilesAreThereAndNotListed) {
  EXPECT_EQ(list(mount().path()), std::vector<std::string>());
  std::vector<std::string> all = kWritable;
  all.insert(all.end(), kReadOnly.begin(), kReadOnly.end());
  all.insert(all.end(), kAnswering.begin(), kAnswering.end());
  for (const std::string& name : all) {
    struct stat status {};
    ASSERT_EQ(::stat(control(name).c_str(), &status), 0) << name;
    const bool writable = std::find(kWritable.begin(), kWritable.end(), name) != kWritable.end();
    const bool answers = std::ranges::find(kAnswering, name) != kAnswering.end();
    const mode_t mode = answers ? 0666 : writable ? 0644 : name == "entries" ? 0400 : 0444;
    EXPECT_EQ(status.st_mode, S_IFREG | mode) << name;
    EXPECT_EQ(read_file(control(name)).back(), '\n') << name;
  }
  std::sort(all.begin(), all.end());
  EXPECT_EQ(list(mount().path() + "/.pool"), all);
  EXPECT_EQ(list(mount().root() + "/.kvcachefs"),
            (std::vector<std::string>{"access_log", "configure", "metrics", "pools", "stats", "stats.json",
                                      "upgrades", "version"}));
}

TEST_F(ControlTest, APoolWithoutADiskTierRefusesItsOrders) {
  const size_t log_before = mount().log().size();
  EXPECT_EQ(error_name(write_once(control("durability"), "sync")), "EOPNOTSUPP");
  EXPECT_TRUE(eventually(
      [&] { return mount().log().find("pool p has no disk tier", log_before) != std::string::npos; }));
}

TEST_F(ControlTest, NoDiskTierIsAttachedOverIoUring) {
  if (mode() != Mode::kIoUring) GTEST_SKIP() << "of io_uring alone";
  EXPECT_EQ(error_name(write_once(mount().administrators("spill"), "/var/tmp/kv-spill-nobody-makes 1G")),
            "EOPNOTSUPP");
  EXPECT_TRUE(eventually([] {
    return mount().log().find("pool p: spill=/var/tmp/kv-spill-nobody-makes would block an open") !=
           std::string::npos;
  }));
  EXPECT_EQ(read_file(control("spill")), "none\n");
}

// What each file takes and refuses is in control_pool_files_test and settings_test: here it arrives in the
// pool that serves.
TEST_F(ControlTest, SettingsArrive) {
  takes("size", "128M", "128M");
  EXPECT_EQ(mount().stat_value("size_bytes"), 128 << 20);
  takes("size", "65536K\n", "64M");
  EXPECT_EQ(mount().stat_value("size_bytes"), 64 << 20);
  takes("policy", "fifo\n", "fifo");
  EXPECT_EQ(mount().stats().at("policy"), "fifo");
  takes("policy", "lru", "lru");
  takes("watermarks", "50:60\n", "50:60");
  takes("watermarks", "95:98", "95:98");
  takes("entry_size", "2M", "2M");
  EXPECT_EQ(mount().stat_value("entry_size_bytes"), 2 << 20);
  EXPECT_EQ(write_once(control("entry_size"), "auto"), 0);
  takes("pinned_max", "25%", "25%");
  EXPECT_EQ(mount().stat_value("pinned_max_bytes"), 16 << 20);
  takes("pinned_max", "50%", "50%");
  takes("max_entries", "1000", "1000");
  EXPECT_EQ(mount().stat_value("max_entries"), 1000);
  takes("max_entries", "0", "0");
}

TEST_F(ControlTest, RefusalsAreLogged) {
  refuses("size", "many");
  refuses("size", "999999T");  // by the pool, not by its form
}

TEST_F(ControlTest, ShellWritesWork) {
  // `echo fifo > policy` opens with O_TRUNC, `>>` with O_APPEND.
  write_file(control("policy"), "fifo\n");
  EXPECT_EQ(read_file(control("policy")), "fifo\n");
  {
    const File append(control("policy"), O_WRONLY | O_APPEND);
    EXPECT_EQ(::write(append.fd(), "lru\n", 4), 4);
  }
  EXPECT_EQ(read_file(control("policy")), "lru\n");
}

// Because the daemon opens the path of a spill setting as root, a pool's owner may not set it.
TEST_F(ControlTest, NoOwnerSaysWhereAPoolSpills) {
  const std::string root_file = mount().runtime_dir() + "-of-root";
  write_file(root_file, "precious");
  ASSERT_EQ(::chown(mount().path().c_str(), 1234, 1234), 0);
  EXPECT_EQ(as_user(1234, 1234, [&] { return write_once(control("policy"), "lru"); }), 0)
      << "its owner steers it";
  EXPECT_EQ(as_user(1234, 1234, [&] { return write_once(control("spill"), root_file + " 1M"); }), EPERM);
  const File handed_on(control("spill"), O_WRONLY);
  EXPECT_EQ(as_user(1234, 1234,
                    [&] {
                      const std::string order = root_file + " 1M\nspill_force=on";
                      return error_of(::write(handed_on.fd(), order.data(), order.size()));
                    }),
            EPERM);
  ASSERT_EQ(::chown(mount().path().c_str(), 0, 0), 0);
  EXPECT_EQ(read_file(root_file), "precious");
  ::unlink(root_file.c_str());
}

TEST_F(ControlTest, CopiedLikeAnyFile) {
  for (const std::string& file : {control("stats"), control("size"), global("stats.json")}) {
    const Outcome copied = run({"/bin/cp", file, mount().runtime_dir() + "-copy"});
    EXPECT_EQ(copied.exit_code, 0) << file << ": " << copied.error;
    EXPECT_FALSE(read_file(mount().runtime_dir() + "-copy").empty()) << file;
  }
  ::unlink((mount().runtime_dir() + "-copy").c_str());
  const File file(control("size"), O_RDONLY);
  EXPECT_EQ(error_of(::lseek(file.fd(), 0, SEEK_DATA)), EINVAL);
}

TEST_F(ControlTest, ReadOnlyOnesRefuseAndNothingIsMade) {
  for (const std::string& name : kReadOnly) {
    EXPECT_NE(write_once(control(name), "x"), 0) << name;
    EXPECT_EQ(as_user(1234, 1234, [&] { return write_once(control(name), "x"); }), EACCES) << name;
  }
  for (const std::string& name : kWritable) {
    EXPECT_EQ(as_user(1234, 1234, [&] { return write_once(control(name), "x"); }), EACCES) << name;
    EXPECT_EQ(as_user(1234, 1234, [&] { return read_file(control(name)).empty() ? 1 : 0; }), 0) << name;
  }
  const std::string folder = mount().path() + "/.pool";
  EXPECT_NE(error_of(::open((folder + "/new").c_str(), O_CREAT | O_RDWR, 0644)), 0);
  EXPECT_NE(error_of(::mkdir((folder + "/new").c_str(), 0755)), 0);
  EXPECT_NE(error_of(::unlink((folder + "/size").c_str())), 0);
  EXPECT_NE(error_of(::rename((folder + "/size").c_str(), (folder + "/size2").c_str())), 0);
  EXPECT_NE(error_of(::rename((folder + "/size").c_str(), path("size").c_str())), 0);
  EXPECT_EQ(error_of(::link((folder + "/size").c_str(), path("size").c_str())), EPERM);
  EXPECT_EQ(error_of(::link((folder + "/size").c_str(), (mount().root() + "/size").c_str())), EPERM);
  EXPECT_NE(error_of(::rmdir(folder.c_str())), 0);
  EXPECT_NE(error_of(::rename(folder.c_str(), path("moved").c_str())), 0);
  EXPECT_EQ(error_of(::mkdir(folder.c_str(), 0755)), EEXIST);
  ASSERT_EQ(store(path("file"), "x"), 0);
  EXPECT_NE(error_of(::rename(path("file").c_str(), (folder + "/size").c_str())), 0);
  EXPECT_EQ(read_file(control("size")), "64M\n");
}

TEST_F(ControlTest, PiecesOfAReadFitTogether) {
  for (const std::string name : {"size", "stats", "stats.json"}) {
    const File file(control(name), O_RDONLY);
    std::string pieces;
    char byte = 0;
    while (::read(file.fd(), &byte, 1) == 1) pieces += byte;
    EXPECT_EQ(pieces.back(), '\n') << name;
    if (name == "size") {
      EXPECT_EQ(pieces, "64M\n");
    }
    if (name == "stats") {
      EXPECT_EQ(parse_stats(pieces).size(), std::size(kPoolStats));
    }
    EXPECT_EQ(read_at(file.fd(), 1, 2), pieces.substr(1, 2)) << name;
    EXPECT_EQ(read_at(file.fd(), 1 << 20, 10), "") << name;
  }
}

TEST_F(ControlTest, LookingIsNoAccess) {
  write_file(path("e"), pattern(1, 100'000));
  ASSERT_TRUE(all_closed(mount()));
  const timespec times[2] = {{1'200'000'000, 0}, {1'300'000'000, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path("e").c_str(), times, 0), 0);
  for (const char* file : {"stats", "numa", "entries"}) EXPECT_NE(read_file(control(file)), "");
  struct ::statx status {};
  ASSERT_EQ(::statx(AT_FDCWD, path("e").c_str(), AT_STATX_FORCE_SYNC, STATX_ATIME, &status), 0);
  EXPECT_EQ(status.stx_atime.tv_sec, 1'200'000'000);
}

TEST_F(ControlTest, StatsCount) {
  mount().stop_squeezing();
  const auto before = mount().stats();
  for (const PoolStat& stat : kPoolStats) EXPECT_TRUE(before.contains(std::string(stat.name))) << stat.name;
  EXPECT_EQ(before.at("io_mode"), mode() == Mode::kDaemonIo ? "daemon" : "passthrough");
  ASSERT_EQ(store(path("one"), pattern(1, kMiB)), 0);
  ASSERT_EQ(store(path("two"), pattern(2, kMiB)), 0);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read_file(path("one")).size(), kMiB);
  EXPECT_EQ(error_of(::open(path("never-there").c_str(), O_RDONLY)), ENOENT);
  const auto difference_of = [&](const std::string& name) {
    return mount().stat_value(name) - std::stoll(before.at(name));
  };
  EXPECT_EQ(difference_of("creates"), 2);
  EXPECT_EQ(difference_of("opens_hit"), 3);
  EXPECT_GE(difference_of("lookups_missed"), 1);
  EXPECT_EQ(difference_of("entries"), 2);
  EXPECT_TRUE(eventually([&] { return difference_of("used_bytes") == 2 * static_cast<int64_t>(kMiB); }))
      << difference_of("used_bytes");
  EXPECT_TRUE(eventually([&] { return difference_of("evictable_bytes") == 2 * static_cast<int64_t>(kMiB); }));
  EXPECT_EQ(mount().stat_value("free_bytes"),
            mount().stat_value("size_bytes") - mount().stat_value("used_bytes"));
  {
    const File open_file(path("one"), O_RDONLY);
    EXPECT_EQ(mount().stat_value("open_entries"), 1);
  }
  EXPECT_TRUE(eventually([] { return mount().stat_value("open_entries") == 0; }));
  ASSERT_EQ(::unlink(path("one").c_str()), 0);
  EXPECT_EQ(difference_of("removes"), 1);
  EXPECT_EQ(difference_of("entries"), 1);
}

TEST_F(ControlTest, JsonSaysTheSame) {
  const std::string pool = read_file(control("stats.json"));
  for (const PoolStat& stat : kPoolStats)
    EXPECT_NE(pool.find(fmt::format("\"{}\":", stat.name)), std::string::npos) << stat.name;
  EXPECT_EQ(pool.front(), '{');
  const std::string all = read_file(global("stats.json"));
  EXPECT_NE(all.find("\"pools\":"), std::string::npos);
  EXPECT_NE(all.find("\"used_bytes\":"), std::string::npos);
  EXPECT_EQ(std::count(all.begin(), all.end(), '{'), std::count(all.begin(), all.end(), '}'));
}

TEST_F(ControlTest, NodesAddUp) {
  mount().stop_squeezing();
  ASSERT_EQ(store(path("file"), pattern(1, 4 * kMiB)), 0);
  const std::regex form("node ([0-9]+) bytes ([0-9]+) huge ([0-9]+)");
  EXPECT_TRUE(eventually([&] {
    int64_t bytes = 0;
    for (const std::string& line : lines_of(read_file(control("numa")))) {
      std::smatch match;
      if (!std::regex_match(line, match, form)) return false;
      bytes += std::stoll(match[2]);
    }
    return bytes >= 4 * static_cast<int64_t>(kMiB);
  })) << read_file(control("numa"));
}

TEST_F(ControlTest, EntriesAreListed) {
  make_directory(path("folder"));
  ASSERT_EQ(store(path("folder/one"), pattern(1, 5000)), 0);
  ASSERT_EQ(store(path("tab\tline\nback\\slash"), "12345"), 0);
  ASSERT_EQ(set_xattr(path("folder/one"), "user.kv.priority", "7"), 0);
  ASSERT_EQ(set_xattr(path("folder/one"), "user.kvcachefs.pinned", "1"), 0);
  EXPECT_EQ(read_file(path("folder/one")).size(), 5000u);
  std::vector<std::string> lines = lines_of(read_file(control("entries")));
  ASSERT_EQ(lines.size(), 3u) << read_file(control("entries"));
  EXPECT_EQ(lines[0], "name size tier node hits age_s priority pinned");
  std::sort(lines.begin() + 1, lines.end());
  EXPECT_TRUE(
      std::regex_match(lines[1], std::regex("folder/one\t5000\t(dirty|clean|cold)\t[0-9]+\t1\t[0-9]+\t7\t1")))
      << lines[1];
  EXPECT_TRUE(std::regex_match(lines[2], std::regex(R"(tab\\tline\\nback\\\\slash)"
                                                    "\t5\t(dirty|clean|cold)\t[0-9]+\t0\t[0-9]+\t0\t0")))
      << lines[2];
}

TEST_F(ControlTest, ManyEntriesStream) {
  constexpr int kEntries = 3000;
  for (int i = 0; i < kEntries; ++i) write_file(path("a-name-of-some-length-" + std::to_string(i)), "x");
  EXPECT_EQ(lines_of(read_file(control("entries"))).size(), size_t{kEntries} + 1);
}

TEST_F(ControlTest, Global) {
  EXPECT_EQ(read_file(global("version")), "kvcachefs " KVCACHEFS_VERSION "\n");
  const auto stats = parse_stats(read_file(global("stats")));
  EXPECT_EQ(stats.at("io_mode"), mode() == Mode::kDaemonIo ? "daemon" : "passthrough");
  EXPECT_EQ(stats.at("transport"), mode() == Mode::kIoUring ? "io_uring" : "dev_fuse");
  EXPECT_EQ(stats.at("pools"), "1");
  EXPECT_EQ(stats.at("version"), KVCACHEFS_VERSION);
  for (const char* name : {"threads", "poll_us", "memory_bytes", "uptime_s", "pid"}) {
    ASSERT_TRUE(stats.contains(name)) << name;
    EXPECT_NO_THROW(std::stoll(stats.at(name))) << name;
  }
  EXPECT_NE(write_once(global("version"), "x"), 0);
}

TEST_F(ControlTest, MetricsAreInPrometheusForm) {
  ASSERT_EQ(store(path("file"), "x"), 0);
  const std::string text = read_file(global("metrics"));
  const std::regex sample(
      R"re(kvcachefs_[a-z0-9_]+(\{[a-z_]+="[^"]*"(,[a-z_]+="[^"]*")*\})? [0-9.eE+-]+|.* \+Inf)re");
  int samples = 0;
  for (const std::string& line : lines_of(text)) {
    if (line.empty() || line.starts_with("# HELP ") || line.starts_with("# TYPE ")) continue;
    EXPECT_TRUE(std::regex_match(line, sample)) << line;
    ++samples;
  }
  EXPECT_GT(samples, 20);
  EXPECT_NE(text.find("{pool=\"p\""), std::string::npos);
}

}  // namespace
}  // namespace kvcachefs::test
