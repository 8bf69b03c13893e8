// mtime and ctime stay as the client left them, whatever the daemon does to an entry afterwards: it gives
// back reserved memory that was not written, writes the entry to a disk, drops its memory and brings it back,
// dies at any of these steps, starts again. The tests use real programs whose users notice a change, and the
// calls of those programs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

struct Times {
  int64_t modified_ns = 0, changed_ns = 0;
  auto operator<=>(const Times&) const = default;
};

void PrintTo(const Times& times, std::ostream* out) {
  *out << "mtime " << times.modified_ns << " ns, ctime " << times.changed_ns << " ns";
}

int64_t in_ns(const auto& time) {
  return time.tv_sec * int64_t{1'000'000'000} + time.tv_nsec;
}

// The times as the daemon has them, not those in the kernel's cache.
Times times_of(const std::string& path) {
  struct statx found {};
  if (::statx(AT_FDCWD, path.c_str(), AT_SYMLINK_NOFOLLOW | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, &found) !=
      0)
    return {};
  return {in_ns(found.stx_mtime), in_ns(found.stx_ctime)};
}

using AllTimes = std::map<std::string, Times>;

AllTimes times_below(const std::string& directory) {
  AllTimes all;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (entry.path().string().find("/.pool") != std::string::npos) continue;
    all[entry.path().string().substr(directory.size())] = times_of(entry.path());
  }
  return all;
}

const timespec kLongAgo[2] = {{1'000'000'000, 11}, {1'000'000'001, 123'456'789}};
const int64_t kLongAgoNs = in_ns(kLongAgo[1]);

enum class Tiers { kMemory, kDisk };

class TimesTest : public FaultedTierTest, public ::testing::WithParamInterface<Tiers> {
 protected:
  bool has_disk() const { return GetParam() == Tiers::kDisk; }
  void SetUp() override {
    FaultedTierTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    begin();
  }
  // Each file has more memory reserved than is written to it.
  void begin() {
    const std::string pool = "p:size=64M,entry_size=1M";
    start_pool(has_disk() ? pool + ",spill=" + spill_file() + ",spill_size=256M" : pool);
  }
  void settle() {
    ASSERT_TRUE(all_closed(mount()));
    if (has_disk()) {
      ASSERT_TRUE(becomes("dirty_entries", 0));
    }
  }
  AllTimes all_times() { return times_below(mount().path()); }
  void expect_times(const AllTimes& expected, const std::string& when) {
    const AllTimes now = all_times();
    EXPECT_EQ(now.size(), expected.size()) << when;
    for (const auto& [name, times] : expected)
      EXPECT_EQ(now.contains(name) ? now.at(name) : Times(), times) << name << ", " << when;
  }
  // expect_times_kept() expects the times to stay through all that the daemon does by itself.
  void expect_times_kept() {
    const AllTimes before = all_times();
    settle();
    expect_times(before, "closed");
    if (has_disk()) {
      make_all_cold();
      expect_times(before, "cold");
      for (const auto& [name, times] : before)
        if (std::filesystem::is_regular_file(path(name))) (void)read_file(path(name));
      expect_times(before, "back");
    }
    replace_server();
    expect_times(before, "taken over");
    if (!has_disk()) return;
    make_all_cold();
    replace_server();
    expect_times(before, "taken over, cold");
    begin();
    expect_times(before, "started again");
    replace_server();
    expect_times(before, "started again, and taken over");
  }
  // Only mtimes have to be equal, because the ctimes are those of the copies.
  static void expect_same_mtimes(const AllTimes& copies, const AllTimes& sources) {
    for (const auto& [name, times] : sources)
      EXPECT_EQ(copies.contains(name) ? copies.at(name).modified_ns : 0, times.modified_ns) << name;
  }
  std::string make_source() {
    const std::string source = disk() / "source";
    std::filesystem::create_directories(source + "/inner/most");
    for (int i = 0; i < 60; ++i) {
      constexpr const char* kPlaces[] = {"/", "/inner/", "/inner/most/"};
      const std::string name = source + kPlaces[i % 3] + "f" + std::to_string(i);
      write_file(name, pattern(static_cast<uint64_t>(i), static_cast<size_t>(i) * 7001 + 1));
      const timespec times[2] = {{1'100'000'000 + i, 5}, {1'200'000'000 + i, 1'000'000 + i}};
      EXPECT_EQ(::utimensat(AT_FDCWD, name.c_str(), times, 0), 0);
    }
    EXPECT_EQ(::symlink("inner/f1", (source + "/link").c_str()), 0);
    for (const char* name : {"/link", "/inner/most", "/inner"})
      EXPECT_EQ(::utimensat(AT_FDCWD, (source + name).c_str(), kLongAgo, AT_SYMLINK_NOFOLLOW), 0);
    return source;
  }
  static void expect_runs(const std::vector<std::string>& command) {
    const Outcome outcome = run(command);
    EXPECT_EQ(outcome.exit_code, 0) << command[0] << ": " << outcome.out << outcome.error;
    EXPECT_EQ(outcome.error, "") << command[0];
  }
  // make_entry() makes an entry with times that are set while it is open, as cp -p, tar and touch set them.
  void make_entry(const std::string& name, size_t bytes = 300'001) {
    const File file(path(name), O_RDWR | O_CREAT);
    const std::string content = pattern(7, bytes);
    ASSERT_EQ(::write(file.fd(), content.data(), bytes), static_cast<ssize_t>(bytes));
    ASSERT_EQ(::futimens(file.fd(), kLongAgo), 0);
  }
};

TEST_P(TimesTest, CopiesOfPrograms) {
  const std::string source = make_source();
  const AllTimes sources = times_below(source);
  const std::string archive = disk() / "archive.tar";
  expect_runs({"/usr/bin/tar", "--format=posix", "-C", source, "-cf", archive, "."});
  make_directory(path("tar"));
  expect_runs({"/usr/bin/cp", "-a", source, path("cp-a")});
  expect_runs({"/usr/bin/tar", "-C", path("tar"), "-xf", archive});
  expect_runs({"/usr/bin/rsync", "-a", source + "/", path("rsync")});
  make_directory(path("cp-p"));
  for (int i = 0; i < 60; i += 3)
    expect_runs({"/usr/bin/cp", "-p", source + "/f" + std::to_string(i), path("cp-p")});
  expect_runs({"/usr/bin/cp", "-a", source, disk() / "moved"});
  expect_runs({"/usr/bin/mv", disk() / "moved", path("mv")});
  settle();
  for (const char* copy : {"cp-a", "tar", "rsync", "mv"})
    expect_same_mtimes(times_below(path(copy)), sources);
  for (int i = 0; i < 60; i += 3) {
    const std::string name = "/f" + std::to_string(i);
    EXPECT_EQ(times_of(path("cp-p" + name)).modified_ns, sources.at(name).modified_ns);
  }
  expect_times_kept();
}

TEST_P(TimesTest, RsyncWhileServersAreKilled) {
  const std::string source = make_source();
  for (const char* options : {"-a", "-aX"}) {
    Program rsync({"/usr/bin/rsync", options, "--bwlimit=20M", source + "/", path(options + 1)});
    for (int kills = 0; kills < 4; ++kills) replace_server();
    const Outcome outcome = rsync.wait();
    EXPECT_EQ(outcome.exit_code, 0) << options << outcome.error;
    const Outcome again =
        run({"/usr/bin/rsync", options, "--dry-run", "--itemize-changes", source + "/", path(options + 1)});
    EXPECT_EQ(again.out, "") << options;
  }
  expect_times_kept();
}

// The daemon looks for what was not written after the close, and its look is no access of a user's.
TEST_P(TimesTest, AnAccessTimeThatIsSetBeforeTheClose) {
  File file(path("file"), O_WRONLY | O_CREAT);
  ASSERT_EQ(::write(file.fd(), "x", 1), 1);
  ASSERT_EQ(::futimens(file.fd(), kLongAgo), 0);
  file.close();
  settle();
  struct statx found {};
  ASSERT_EQ(::statx(AT_FDCWD, path("file").c_str(), AT_STATX_FORCE_SYNC, STATX_ATIME, &found), 0);
  EXPECT_EQ(found.stx_atime.tv_sec, kLongAgo[0].tv_sec);
}

// The daemon reserves more memory for a file that outgrew its reservation while it is written.
TEST_P(TimesTest, SetWhileItIsOpen) {
  std::vector<File> files;
  for (int i = 0; i < 30; ++i) {
    make_entry("e" + std::to_string(i), 100'000);
    files.emplace_back(path("e" + std::to_string(i)), O_RDWR);
    const std::string content = pattern(3, 900'000);
    ASSERT_EQ(::pwrite(files.back().fd(), content.data(), content.size(), 100'000),
              static_cast<ssize_t>(content.size()));
    ASSERT_EQ(::futimens(files.back().fd(), kLongAgo), 0);
  }
  const AllTimes before = all_times();
  for (const auto& [name, times] : before) EXPECT_EQ(times.modified_ns, kLongAgoNs) << name;
  const int64_t rounds = stat("creates");
  for (int i = 0; i < 300; ++i) EXPECT_EQ(stat("creates"), rounds);
  expect_times(before, "open");
  files.clear();
  expect_times_kept();
}

// A client's later changes show in the times, at once and after all that the daemon does.
TEST_P(TimesTest, ChangesOfUsersAreSeen) {
  const std::vector<std::pair<std::string, std::function<int(const std::string&)>>> changes = {
      {"chmod", [](const std::string& name) { return ::chmod(name.c_str(), 0640); }},
      {"chown", [](const std::string& name) { return ::chown(name.c_str(), 12, 34); }},
      {"setxattr", [](const std::string& name) { return set_xattr(name, "user.model", "llama"); }},
      {"removexattr", [](const std::string& name) { return ::removexattr(name.c_str(), "user.before"); }},
      {"link", [](const std::string& name) { return ::link(name.c_str(), (name + "-link").c_str()); }},
      {"unlink", [](const std::string& name) { return ::unlink((name + "-second").c_str()); }},
      {"rename",
       [](const std::string& name) {
         return ::rename(name.c_str(), (name + "-new").c_str()) |
                ::rename((name + "-new").c_str(), name.c_str());
       }},
      {"replace",
       [](const std::string& name) {
         write_file(name + "-other", "x");
         return ::rename((name + "-other").c_str(), (name + "-second").c_str());
       }},
      {"utimens", [](const std::string& name) { return ::utimensat(AT_FDCWD, name.c_str(), kLongAgo, 0); }},
      {"truncate", [](const std::string& name) { return ::truncate(name.c_str(), 77); }},
      {"write", [](const std::string& name) {
         const File file(name, O_WRONLY);
         return ::pwrite(file.fd(), "x", 1, 0) == 1 ? 0 : -1;
       }}};
  for (const bool cold : {false, true}) {
    if (cold && !has_disk()) break;
    for (const auto& [name, change] : changes) {
      const std::string entry = path(name + (cold ? "-cold" : ""));
      make_entry(name + (cold ? "-cold" : ""));
      ASSERT_EQ(set_xattr(entry, "user.before", "1"), 0);
      ASSERT_EQ(::link(entry.c_str(), (entry + "-second").c_str()), 0);
    }
    settle();
    if (cold) make_all_cold();
    for (const auto& [name, change] : changes) {
      const std::string entry = path(name + (cold ? "-cold" : ""));
      const Times before = times_of(entry);
      EXPECT_EQ(before.modified_ns, kLongAgoNs);
      EXPECT_EQ(change(entry), 0) << name;
      const Times after = times_of(entry);
      EXPECT_GT(after.changed_ns, before.changed_ns) << entry;
      const bool writes = name == "truncate" || name == "write";
      EXPECT_EQ(after.modified_ns > kLongAgoNs, writes) << entry;
    }
  }
  expect_times_kept();
}

TEST_P(TimesTest, FailedCallsAndOpensLeaveThem) {
  make_entry("e");
  ASSERT_EQ(::chmod(path("e").c_str(), 0666), 0);
  settle();
  const Times before = times_of(path("e"));
  const auto expect_failures = [&] {
    EXPECT_EQ(as_user(65534, 65534,
                      [&] {
                        const std::string name = path("e");
                        int done = ::chmod(name.c_str(), 0600) == 0;
                        done += ::chown(name.c_str(), 0, 0) == 0;
                        done += ::rename(name.c_str(), path("none/x").c_str()) == 0;
                        done += ::truncate(name.c_str(), -1) == 0;
                        const int fd = ::open(name.c_str(), O_RDWR | O_CLOEXEC);
                        return fd < 0 ? 100 : ::close(fd) + done;
                      }),
              0);
    EXPECT_EQ(times_of(path("e")), before);
  };
  expect_failures();
  settle();
  EXPECT_EQ(times_of(path("e")), before);
  if (has_disk()) {
    make_all_cold();
    expect_failures();
  }
  replace_server();
  EXPECT_EQ(times_of(path("e")), before);
}

TEST_P(TimesTest, DeathBeforeTheyArePutBack) {
  const std::string place = "times to be put back";
  make_entry("evicted");
  settle();
  const Times evicted = times_of(path("evicted"));
  {
    const File file(path("closed"), O_RDWR | O_CREAT);
    ASSERT_EQ(::write(file.fd(), "x", 1), 1);
    ASSERT_EQ(::futimens(file.fd(), kLongAgo), 0);
    arm(place);
  }
  EXPECT_TRUE(fired(place));
  const Times closed = times_of(path("closed"));
  EXPECT_EQ(closed.modified_ns, kLongAgoNs);
  settle();
  EXPECT_EQ(times_of(path("closed")), closed);
  if (!has_disk()) return;
  die_at(place, [&] { order(mount(), "1000000 entries"); });
  EXPECT_EQ(times_of(path("evicted")), evicted) << "its memory gone";
  make_all_cold();
  for (const char* where :
       {"promotion begun", "copied from the disk", "times to be put back", "marked promoted"}) {
    die_at(where, [&] { EXPECT_EQ(difference(7, read_file(path("evicted"))), ""); });
    EXPECT_EQ(times_of(path("evicted")), evicted) << where;
    make_all_cold();
    serve_for_a_moment();
  }
  for (const char* where : {"copied to the disk", "marked clean", "marked cold", "pages dropped"}) {
    make_entry(where);
    ASSERT_TRUE(all_closed(mount()));
    const Times before = times_of(path(where));
    arm(where);
    order(mount(), "1000000 entries");
    EXPECT_TRUE(fired(where));
    make_all_cold();
    EXPECT_EQ(times_of(path(where)), before) << where;
    serve_for_a_moment();
  }
}

// A record of directories and links in the catalog does not change their times, either.
TEST_P(TimesTest, DirectoriesAndLinks) {
  make_directory(path("d"));
  make_directory(path("d/inner"));
  ASSERT_EQ(::symlink("inner", path("d/link").c_str()), 0);
  ASSERT_EQ(::mkfifo(path("d/pipe").c_str(), 0600), 0);
  const AllTimes before = all_times();
  make_entry("e");
  settle();
  ASSERT_EQ(::unlink(path("e").c_str()), 0);
  expect_times(before, "in the catalog");
  ASSERT_EQ(::chmod(path("d/inner").c_str(), 0700), 0);
  const Times changed = times_of(path("d/inner"));
  EXPECT_GT(changed, before.at("/d/inner"));
  make_entry("d/inner/e");
  EXPECT_GT(times_of(path("d/inner")), changed);
  expect_times_kept();
}

// stat(2) gives the times in the kernel's cache, because a write through a mapping goes past FUSE.
TEST_P(TimesTest, WritesThroughMappingsAreSeen) {
  const std::string name = path("mapped");
  write_file(name, std::string(16 * 4096, 'a'));
  settle();
  const auto modified = [&] {
    struct ::stat status {};
    EXPECT_EQ(::stat(name.c_str(), &status), 0);
    return in_ns(status.st_mtim);
  };
  auto before = modified();
  // The first write to a page moves the times, as on a tmpfs: the kernel may give a mapping several pages at
  // once.
  const auto write_to = [&](const Mapping& mapping) {
    mapping.data()[0] = 'b';
    ASSERT_EQ(::msync(mapping.data(), mapping.bytes(), MS_SYNC), 0);
  };
  const auto expect_moved = [&](const char* when) {
    const auto now = modified();
    EXPECT_GT(now, before) << when;
    before = now;
  };
  for (int round = 0; round < 5; ++round) {
    File file(name, O_RDWR);
    {
      const Mapping mapping(file.fd(), 4096, PROT_READ | PROT_WRITE, MAP_SHARED);
      ASSERT_TRUE(mapping.valid());
      write_to(mapping);
      expect_moved("open and mapped");
    }
    const Mapping mapping(file.fd(), 4096, PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    EXPECT_EQ(modified(), before);
    file.close();
    EXPECT_EQ(modified(), before);
    write_to(mapping);
    expect_moved("closed and mapped");
  }
  const auto last = modified();
  settle();
  EXPECT_EQ(modified(), last);
  expect_times_kept();
}

INSTANTIATE_TEST_SUITE_P(Of, TimesTest, ::testing::Values(Tiers::kMemory, Tiers::kDisk),
                         [](const auto& tiers) { return tiers.param == Tiers::kMemory ? "Memory" : "Disk"; });

}  // namespace
}  // namespace kvcachefs::test
