// Which entries of a pool are there again after its daemon ended, by a stop or by SIGKILL, and was started on
// the same spill file.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

class SpillRestartTest : public DiskTierTest {
 protected:
  struct ::stat status_of(const std::string& name) {
    struct ::stat status {};
    EXPECT_EQ(::lstat(path(name).c_str(), &status), 0) << name;
    return status;
  }
  // make_tree() makes a tree with names, modes, owners, times, links, xattrs and pins.
  void make_tree();
  void expect_tree();
};

void SpillRestartTest::make_tree() {
  make_directory(path("d"), 0750);
  make_directory(path("d/inner"), 0700);
  ASSERT_EQ(error_name(store(path("d/inner/e"), pattern(1, 100'000))), "ok");
  ASSERT_EQ(error_name(store(path("d/f"), pattern(2, 5000))), "ok");
  ASSERT_EQ(error_name(store(path("pinned"), pattern(3, kMiB))), "ok");
  ASSERT_EQ(error_name(store(path("empty"), "")), "ok");
  ASSERT_EQ(error_name(store(path("odd \n name\\"), "odd")), "ok");
  ASSERT_EQ(::link(path("d/f").c_str(), path("d/inner/second").c_str()), 0);
  ASSERT_EQ(::symlink("inner/e", path("d/link").c_str()), 0);
  ASSERT_EQ(::mkfifo(path("d/pipe").c_str(), 0604), 0);
  ASSERT_EQ(set_xattr(path("d/inner/e"), "user.model", std::string("a\0b", 3)), 0);
  ASSERT_EQ(set_xattr(path("d/inner/e"), "user.kv.priority", "7"), 0);
  ASSERT_EQ(set_xattr(path("d"), "user.of", "directory"), 0);
  ASSERT_EQ(::lsetxattr(path("d/link").c_str(), "trusted.of", "link", 4, 0), 0);
  ASSERT_EQ(set_xattr(path("pinned"), "user.kvcachefs.pinned", "1"), 0);
  ASSERT_EQ(::chown(path("d/inner/e").c_str(), 11, 22), 0);
  ASSERT_EQ(::chmod(path("d/inner/e").c_str(), 04751), 0);
  ASSERT_EQ(::lchown(path("d/link").c_str(), 5, 6), 0);
  ASSERT_EQ(::chown(path("d/inner").c_str(), 33, 44), 0);
  ASSERT_EQ(::chmod(path("d/inner").c_str(), 02771), 0);
  const timespec file_times[2] = {{1'200'000'000, 123'456'789}, {1'300'000'000, 987'654'321}};
  const timespec directory_times[2] = {{1'400'000'000, 1}, {1'500'000'000, 2}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path("d/inner/e").c_str(), file_times, 0), 0);
  ASSERT_EQ(::utimensat(AT_FDCWD, path("d/inner").c_str(), directory_times, 0), 0);
}

void SpillRestartTest::expect_tree() {
  EXPECT_EQ(list(mount().path()), (std::vector<std::string>{"d", "empty", "odd \n name\\", "pinned"}));
  EXPECT_EQ(list(path("d")), (std::vector<std::string>{"f", "inner", "link", "pipe"}));
  EXPECT_EQ(list(path("d/inner")), (std::vector<std::string>{"e", "second"}));
  EXPECT_EQ(stat("entries"), 5);
  const struct ::stat e = status_of("d/inner/e");
  EXPECT_EQ(e.st_mode, S_IFREG | 04751u);
  EXPECT_EQ(e.st_uid, 11u);
  EXPECT_EQ(e.st_gid, 22u);
  EXPECT_EQ(e.st_size, 100'000);
  EXPECT_EQ(e.st_mtim.tv_sec, 1'300'000'000);
  EXPECT_EQ(e.st_mtim.tv_nsec, 987'654'321);
  EXPECT_EQ(e.st_atim.tv_sec, 1'200'000'000);
  const struct ::stat inner = status_of("d/inner");
  EXPECT_EQ(inner.st_mode, S_IFDIR | 02771u);
  EXPECT_EQ(inner.st_uid, 33u);
  EXPECT_EQ(inner.st_mtim.tv_sec, 1'500'000'000);
  EXPECT_EQ(inner.st_mtim.tv_nsec, 2);
  EXPECT_EQ(status_of("d").st_mode, S_IFDIR | 0750u);
  EXPECT_EQ(status_of("d/pipe").st_mode, S_IFIFO | 0604u);
  const struct ::stat link = status_of("d/link");
  EXPECT_TRUE(S_ISLNK(link.st_mode));
  EXPECT_EQ(link.st_uid, 5u);
  EXPECT_EQ(status_of("d/f").st_ino, status_of("d/inner/second").st_ino);
  EXPECT_EQ(status_of("d/f").st_nlink, 2u);
  EXPECT_EQ(xattr(path("d/inner/e"), "user.model"), std::string("a\0b", 3));
  EXPECT_EQ(xattr(path("d/inner/e"), "user.kv.priority"), "7");
  EXPECT_EQ(xattr(path("d"), "user.of"), "directory");
  EXPECT_EQ(::lgetxattr(path("d/link").c_str(), "trusted.of", nullptr, 0), 4);
  EXPECT_EQ(xattr(path("pinned"), "user.kvcachefs.pinned"), "1");
  EXPECT_EQ(stat("pinned_bytes"), static_cast<int64_t>(kMiB));
  EXPECT_TRUE(eventually([&] { return tier_of(path("pinned")) == "clean"; })) << "pinned is in memory";
  EXPECT_EQ(tier_of(path("d/f")), "cold");
  EXPECT_EQ(difference(1, read_file(path("d/link"))), "");
  EXPECT_EQ(difference(2, read_file(path("d/inner/second"))), "");
  EXPECT_EQ(difference(3, read_file(path("pinned"))), "");
  EXPECT_EQ(read_file(path("empty")), "");
  EXPECT_EQ(read_file(path("odd \n name\\")), "odd");
  const struct ::stat read = status_of("d/inner/e");
  EXPECT_EQ(read.st_mtim.tv_sec, 1'300'000'000) << "a promotion is no change";
  EXPECT_EQ(stat("checksum_errors"), 0);
}

TEST_F(SpillRestartTest, CleanStop) {
  start();
  make_tree();
  for (int round = 0; round < 3; ++round) {
    start();
    expect_tree();
  }
}

TEST_F(SpillRestartTest, CleanStopAfterEverythingWasCold) {
  start();
  make_tree();
  ASSERT_TRUE(all_closed(mount()));
  order(mount(), "100%");
  start();
  expect_tree();
}

TEST_F(SpillRestartTest, KilledAfterItWasSynced) {
  for (const char* durability : {"none", "writeback", "sync"}) {
    SCOPED_TRACE(durability);
    start({.more = std::string("durability=") + durability});
    make_tree();
    for (const char* directory : {"", "d", "d/inner"})
      ASSERT_EQ(error_name(sync_directory(directory)), "ok") << directory;
    kill();
    start();
    expect_tree();
    remove_content(mount().path());
    stop();
  }
}

TEST_F(SpillRestartTest, OnlyWhatIsCommittedComesBack) {
  start({.more = "durability=none"});
  const auto names = fill_pool("e", 6);
  for (const int i : {1, 4}) ASSERT_EQ(::fsync(File(names[i], O_RDONLY).fd()), 0);
  {
    const File writer(path("open"), O_WRONLY | O_CREAT);
    ASSERT_EQ(::write(writer.fd(), "so far", 6), 6);
    ASSERT_EQ(::fdatasync(writer.fd()), 0);
    ASSERT_EQ(::write(writer.fd(), " and no further", 15), 15);
    kill();
  }
  start({.more = "durability=none"});
  std::vector<std::string> now;
  for (const std::string& name : names) now.push_back(path(name.substr(name.rfind('/') + 1)));
  EXPECT_EQ(survivors(now), (std::vector<int>{1, 4}));
  EXPECT_EQ(check_whole(now), 2);
  EXPECT_EQ(read_file(path("open")), "so far") << "as it was when it was synced";
  EXPECT_EQ(stat("entries"), 3);
}

// A client makes a file like this that has to exist as a whole or not at all.
TEST_F(SpillRestartTest, SyncedBeforeItHadAName) {
  for (const char* durability : {"none", "writeback"}) {
    SCOPED_TRACE(durability);
    start({.more = std::string("durability=") + durability});
    const File file(mount().path(), O_TMPFILE | O_WRONLY);
    const std::string content = pattern(5, 300'000);
    ASSERT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
    ASSERT_EQ(error_name(error_of(::fsync(file.fd()))), "ok");
    const std::string its_path = "/proc/self/fd/" + std::to_string(file.fd());
    ASSERT_EQ(::linkat(AT_FDCWD, its_path.c_str(), AT_FDCWD, path("named").c_str(), AT_SYMLINK_FOLLOW), 0);
    ASSERT_EQ(error_name(sync_directory()), "ok");
    kill();
    start();
    EXPECT_EQ(difference(5, read_file(path("named"))), "");
    remove_content(mount().path());
    stop();
  }
}

// A file that was emptied to be written again gets a second name, and loses the first one to another file.
TEST_F(SpillRestartTest, TheNewNameOfAFileWhoseOldOneWasReplaced) {
  start();
  const std::string content = pattern(1, 300'000);
  ASSERT_EQ(error_name(store(path("old"), content)), "ok");
  ASSERT_EQ(error_name(store(path("other"), pattern(2, 300'000))), "ok");
  ASSERT_EQ(error_name(sync_directory()), "ok");
  {
    const File file(path("old"), O_WRONLY | O_TRUNC);
    ASSERT_EQ(::link(path("old").c_str(), path("new").c_str()), 0);
    ASSERT_EQ(::rename(path("other").c_str(), path("old").c_str()), 0);
    ASSERT_EQ(error_name(sync_directory()), "ok");
    ASSERT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  }
  ASSERT_EQ(error_name(sync_directory()), "ok");
  // The entries stored next would overwrite its place on the disk if that had been given away.
  EXPECT_EQ(check_whole(fill_pool("e", 40, 300'000)), 40);
  make_all_cold();
  EXPECT_EQ(difference(1, read_file(path("new"))), "");
  EXPECT_EQ(stat("checksum_errors"), 0);
  kill();
  start();
  EXPECT_EQ(difference(1, read_file(path("new"))), "");
  EXPECT_EQ(difference(2, read_file(path("old"))), "");
}

TEST_F(SpillRestartTest, RemovedAndReplacedStaySo) {
  start();
  const auto names = fill_pool("e", 6);
  ASSERT_EQ(error_name(sync_directory()), "ok");
  ASSERT_EQ(::unlink(names[0].c_str()), 0);
  ASSERT_EQ(error_name(store(names[1], "newer")), "ok");
  ASSERT_EQ(::rename(names[2].c_str(), names[3].c_str()), 0);
  ASSERT_EQ(::truncate(names[4].c_str(), 10), 0);
  ASSERT_EQ(error_name(sync_directory()), "ok");
  kill();
  start();
  EXPECT_EQ(list(mount().path()), (std::vector<std::string>{"e-1", "e-3", "e-4", "e-5"}));
  EXPECT_EQ(read_file(path("e-1")), "newer");
  EXPECT_EQ(difference(2, read_file(path("e-3"))), "");
  EXPECT_EQ(read_file(path("e-4")), pattern(4, 10));
  EXPECT_EQ(difference(5, read_file(path("e-5"))), "");
}

// Every store that returned under durability=sync is there after SIGKILL; a name that was being replaced has
// its old or its new content.
TEST_F(SpillRestartTest, SyncOutlivesAKillAtAnyTime) {
  Random random(7);
  for (int round = 0; round < 8; ++round) {
    start({.more = "durability=sync"});
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const File reading(ends[0]);
    File writing(ends[1]);
    const std::string directory = mount().path();
    const pid_t writer = ::fork();
    if (writer == 0) {
      for (int i = 0;; ++i) {
        const std::string name = directory + "/r-" + std::to_string(i % 5);
        if (store(name, pattern(i, 40'000 + i)) != 0) ::_exit(0);
        if (::write(ends[1], &i, sizeof i) != sizeof i) ::_exit(0);
      }
    }
    writing.close();
    // The last store that the writer reported, including reports that it made until the kill.
    int stored = -1;
    const int stop_after = 3 + static_cast<int>(random.below(40));
    while (stored < stop_after && ::read(reading.fd(), &stored, sizeof stored) == sizeof stored) {
    }
    mount().kill();
    ::kill(writer, SIGKILL);
    while (::read(reading.fd(), &stored, sizeof stored) == sizeof stored) {
    }
    ::waitpid(writer, nullptr, 0);
    kill();
    ASSERT_GE(stored, stop_after);
    start({.more = "durability=sync"});
    for (int i = std::max(0, stored - 4); i <= stored; ++i) {
      const std::string content = read_file(path("r-" + std::to_string(i % 5)));
      const int newer = i + 5;  // the store that was under way
      const bool old = content == pattern(i, 40'000 + i);
      EXPECT_TRUE(old || (newer == stored + 1 && content == pattern(newer, 40'000 + newer)))
          << i << " of " << stored << ": " << content.size() << " bytes";
    }
    remove_content(mount().path());
    stop();
  }
}

// Without a sync, each entry that is there after SIGKILL is whole; a replaced name has one of its contents.
TEST_F(SpillRestartTest, NothingIsTornAfterAKill) {
  for (const char* durability : {"none", "writeback"}) {
    for (int round = 0; round < 4; ++round) {
      start({.size = "16M", .spill_size = "64M", .more = std::string("durability=") + durability});
      const std::string directory = mount().path();
      const pid_t writer = ::fork();
      if (writer == 0) {
        for (int i = 0;; ++i) {
          const int slot = i % 50;
          if (store(directory + "/t-" + std::to_string(slot), pattern(slot + 50 * (i % 3), 500'000)) != 0)
            ::_exit(0);
        }
      }
      EXPECT_TRUE(rises_to("spills", 20 + 30 * round));
      mount().kill();
      ::kill(writer, SIGKILL);
      ::waitpid(writer, nullptr, 0);
      kill();
      start({.size = "16M", .spill_size = "64M"});
      for (const std::string& name : list(mount().path())) {
        const std::string content = read_file(path(name));
        if (name.ends_with(".tmp")) continue;  // a file that was not renamed yet
        const int slot = std::stoi(name.substr(2));
        EXPECT_EQ(content.size(), 500'000u) << name;
        EXPECT_TRUE(content == pattern(slot, 500'000) || content == pattern(slot + 50, 500'000) ||
                    content == pattern(slot + 100, 500'000))
            << name;
      }
      EXPECT_EQ(stat("checksum_errors"), 0);
      remove_content(mount().path());
      stop();
    }
  }
}

TEST_F(SpillRestartTest, SmallerMemoryAndSmallerDisk) {
  start({.size = "64M", .spill_size = "256M"});
  const auto names = fill_pool("e", 120);
  EXPECT_TRUE(becomes("dirty_entries", 0));
  const auto now = [&] {
    std::vector<std::string> result;
    for (int i = 0; i < 120; ++i) result.push_back(path("e-" + std::to_string(i)));
    return result;
  };
  start({.size = "16M", .spill_size = "256M"});
  EXPECT_EQ(survivors(now()).size(), 120u);
  EXPECT_EQ(check_whole(now()), 120);
  EXPECT_LE(tmpfs_used_bytes(mount()), 16 * kMiB);
  start({.size = "16M", .spill_size = "64M"});
  struct ::stat status {};
  ASSERT_EQ(::stat(spill_file().c_str(), &status), 0);
  EXPECT_EQ(status.st_size, static_cast<off_t>(64 * kMiB));
  // The daemon discards entries until a 32nd of the disk is free for new ones.
  EXPECT_TRUE(eventually([&] { return stat("spill_used_bytes") <= static_cast<int64_t>(62 * kMiB); }));
  const size_t left = survivors(now()).size();
  EXPECT_GE(left, 20u);
  EXPECT_LE(left, 63u);
  EXPECT_EQ(check_whole(now()), static_cast<int>(left));
  EXPECT_EQ(stat("checksum_errors"), 0);
  EXPECT_LE(stat("spill_used_bytes"), static_cast<int64_t>(64 * kMiB));
  start({.size = "16M", .spill_size = "128M"});
  EXPECT_EQ(survivors(now()).size(), left);
  fill_pool("more", 80);
  EXPECT_GT(stat("spill_used_bytes"), static_cast<int64_t>(64 * kMiB)) << "the new space is used";
  EXPECT_EQ(stat("spill_size_bytes"), static_cast<int64_t>(128 * kMiB));
}

TEST_F(SpillRestartTest, SettingsAndOrderOfLeaving) {
  start({.size = "16M", .spill_size = "64M"});
  fill_pool("e", 40);
  start({.size = "16M", .spill_size = "64M", .more = "policy=fifo"});
  fill_pool("f", 40);
  std::vector<std::string> old;
  for (int i = 0; i < 40; ++i) old.push_back(path("e-" + std::to_string(i)));
  const std::vector<int> left = survivors(old);
  ASSERT_FALSE(left.empty());
  EXPECT_EQ(left.back(), 39) << "of what came back the oldest leave first";
  EXPECT_EQ(left.size(), static_cast<size_t>(40 - left.front()));
}

}  // namespace
}  // namespace kvcachefs::test
