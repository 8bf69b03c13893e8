// A writer that writes one entry after another never gets ENOSPC while closed entries could be evicted for
// it, whatever its sizes. Files that are only open take no room from other writers.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kPoolBytes = 16 * kMiB;

// save() writes a file under its final name from the beginning, as llama.cpp and LMCache do. Returns 0 or the
// errno.
int save(const std::string& path, const std::string& content, size_t piece) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  const File file(fd);
  for (size_t done = 0; done < content.size();) {
    const ssize_t written = ::write(fd, content.data() + done, std::min(piece, content.size() - done));
    if (written <= 0) return written < 0 ? errno : EIO;
    done += static_cast<size_t>(written);
  }
  return 0;
}

struct Load {
  size_t ratio;    // the pool's size divided by an entry's
  size_t writers;  // at once: the pool has room for at least 1.5 times their entries
};
constexpr Load kLoads[] = {{2, 1}, {3, 2}, {4, 2}, {8, 4}, {13, 8}, {30, 8}, {100, 8}};
constexpr size_t kPieces[] = {4 * kKiB, 64 * kKiB, kMiB, SIZE_MAX};

// write_all() fills the pool twice with entries and returns the failures.
std::string write_all(const std::string& directory, Load load, size_t piece) {
  const size_t bytes = kPoolBytes / load.ratio;
  const size_t each = 2 * load.ratio / load.writers + 1;
  std::vector<std::string> failures(load.writers);
  std::vector<std::thread> writers;
  for (size_t w = 0; w < load.writers; ++w) {
    writers.emplace_back([&, w] {
      const std::string content = pattern(w, bytes);
      for (size_t i = 0; i < each; ++i) {
        const std::string name = directory + "/w" + std::to_string(w) + "-" + std::to_string(i % 1000);
        if (const int error = save(name, content, piece); error != 0)
          failures[w] += " " + std::to_string(i) + " " + error_name(error);
      }
    });
  }
  for (std::thread& writer : writers) writer.join();
  std::string all;
  for (const std::string& failure : failures) all += failure;
  return all;
}

std::string text_of(Load load, size_t piece) {
  return "entries of 1/" + std::to_string(load.ratio) + " of the pool by " + std::to_string(load.writers) +
         " writers in pieces of " + std::to_string(piece);
}

class RoomTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
};

// Each ratio has a pool that knows no other sizes.
TEST_F(RoomTest, SequentialWritersFindItAtEveryRatio) {
  MountOptions options{.pools = {}};
  for (const Load& load : kLoads) options.pools.push_back("r" + std::to_string(load.ratio) + ":size=16M");
  Mount mount(options);
  for (const Load& load : kLoads)
    for (const size_t piece : kPieces)
      EXPECT_EQ(write_all(mount.path("r" + std::to_string(load.ratio)), load, piece), "")
          << text_of(load, piece);
  for (const Load& load : kLoads)
    EXPECT_EQ(mount.stat_value("no_space_errors", "r" + std::to_string(load.ratio)), 0) << load.ratio;
  mount.stop();
}

// The sizes that the pool has learned are wrong each time.
TEST_F(RoomTest, SequentialWritersFindItWhateverWasWrittenBefore) {
  Mount mount({.pools = {"p:size=16M"}});
  for (const size_t piece : {64 * kKiB, SIZE_MAX})
    for (const size_t ratio : {30, 2, 100, 3, 30, 2})
      EXPECT_EQ(write_all(mount.path(), {ratio, 1}, piece), "") << text_of({ratio, 1}, piece);
  mount.stop();
}

TEST_F(RoomTest, SequentialWritersFindItWithADiskTier) {
  for (const std::string durability : {"none", "writeback"}) {
    const DiskDirectory disk;
    Mount mount({.pools = {"p:size=16M,durability=" + durability + ",spill=" + disk / "spill" +
                           ",spill_size=64M,catalog=" + disk / "catalog"}});
    for (const Load& load : {Load{2, 1}, Load{8, 4}, Load{100, 8}})
      for (const size_t piece : {64 * kKiB, SIZE_MAX})
        EXPECT_EQ(write_all(mount.path(), load, piece), "") << durability << " " << text_of(load, piece);
    mount.stop();
  }
}

// The pool is so large that a writer may get passthrough before its sizes are known.
TEST_F(RoomTest, OneEntryOfHalfALargePoolAfterManySmall) {
  const size_t pool_bytes = (mode() == Mode::kPassthrough ? 1024 : 64) * kMiB;
  Mount mount({.pools = {"p:size=" + std::to_string(pool_bytes)}});
  mount.stop_squeezing();
  fill(mount.path(), "small", 130, pool_bytes / 128);
  const std::string piece = pattern(1, 64 * kKiB);
  const File file(mount.path() + "/large", O_WRONLY | O_CREAT);
  for (size_t done = 0; done < pool_bytes / 2; done += piece.size())
    ASSERT_EQ(::write(file.fd(), piece.data(), piece.size()), static_cast<ssize_t>(piece.size()))
        << error_name(errno) << " after " << done;
  mount.stop();
}

// A client allocates nearly all of a pool beyond the ends of small entries.
TEST_F(RoomTest, AllocationsBeyondTheEndLeaveWithTheirEntry) {
  const DiskDirectory disk;
  Mount mount(
      {.pools = {"p:size=256M,spill=" + disk / "spill" + ",spill_size=512M,catalog=" + disk / "catalog"}});
  EXPECT_EQ(as_user(65534, 65534,
                    [&] {
                      for (int i = 0; i < 16; ++i) {
                        const File file(mount.path() + "/e" + std::to_string(i), O_RDWR | O_CREAT);
                        const std::string content = pattern(i, kMiB);
                        if (::write(file.fd(), content.data(), kMiB) != static_cast<ssize_t>(kMiB)) return 1;
                        if (::fallocate(file.fd(), FALLOC_FL_KEEP_SIZE, kMiB, 14 * kMiB) != 0) return 2;
                      }
                      return 0;
                    }),
            0);
  EXPECT_TRUE(eventually([&] {
    (void)write_once(mount.control("evict"), "100%");
    return mount.stat_value("cold_entries") == 16;
  }));
  EXPECT_LT(tmpfs_used_bytes(mount), kMiB);
  EXPECT_EQ(difference(3, read_file(mount.path() + "/e3")), "");
  mount.stop();
}

// A page in each unit of the disk, and as much memory beyond the end as the holes lack: the copy fills no
// hole.
TEST_F(RoomTest, ACopyOfASparseEntryTakesNoMemory) {
  const DiskDirectory disk;
  Mount mount(
      {.pools = {"p:size=64M,spill=" + disk / "spill" + ",spill_size=256M,catalog=" + disk / "catalog"}});
  mount.stop_squeezing();
  const std::string name = mount.path() + "/sparse";
  {
    const File file(name, O_RDWR | O_CREAT);
    for (off_t at = 0; at < 24 << 20; at += 64 << 10) ASSERT_EQ(::pwrite(file.fd(), "x", 1, at), 1);
    ASSERT_EQ(::ftruncate(file.fd(), 24 << 20), 0);
    ASSERT_EQ(::fallocate(file.fd(), FALLOC_FL_KEEP_SIZE, 1 << 30, 24 * kMiB), 0);
  }
  ASSERT_TRUE(all_closed(mount));
  const uint64_t before = tmpfs_used_bytes(mount);
  {
    const File file(name, O_RDONLY);
    ASSERT_EQ(::fsync(file.fd()), 0);
  }
  EXPECT_EQ(mount.stat_value("clean_entries"), 1);
  EXPECT_LE(tmpfs_used_bytes(mount), before + (256 << 10));
  mount.stop();
}

// Memory that is allocated far beyond an entry's end leaves with the entry.
TEST_F(RoomTest, AllocationsFarBeyondTheEndLeaveWithTheirEntry) {
  const DiskDirectory disk;
  Mount mount(
      {.pools = {"p:size=64M,spill=" + disk / "spill" + ",spill_size=256M,catalog=" + disk / "catalog"}});
  for (int i = 0; i < 10; ++i) {
    const File file(mount.path() + "/far" + std::to_string(i), O_RDWR | O_CREAT);
    ASSERT_EQ(::write(file.fd(), "x", 1), 1);
    ASSERT_EQ(::fallocate(file.fd(), FALLOC_FL_KEEP_SIZE, 1 << 30, 5 * kMiB), 0) << i;
  }
  EXPECT_TRUE(eventually([&] {
    (void)write_once(mount.control("evict"), "100%");
    return mount.stat_value("cold_entries") == 10;
  }));
  EXPECT_LT(tmpfs_used_bytes(mount), 2 * kMiB);
  mount.stop();
}

// Five times another writer takes the room between the look at it and the allocation.
TEST_F(RoomTest, AClaimThatLosesItToOthersIsMadeAgain) {
  const DiskDirectory faults;
  ::setenv("KVCACHEFS_FAULT_FILE", (faults / "fault").c_str(), 1);
  Mount mount({.pools = {"p:size=64M,entry_size=1M"}});
  ::unsetenv("KVCACHEFS_FAULT_FILE");
  std::string lost;
  for (int i = 0; i < 5; ++i) lost += "fail claim room 28\n";
  ASSERT_EQ(store(faults / "fault", lost), 0);
  ASSERT_EQ(save(mount.path() + "/entry", pattern(1, kMiB), 64 * kKiB), 0);
  EXPECT_FALSE(exists(faults / "fault")) << "not all were lost";
  EXPECT_EQ(mount.stat_value("reservations"), 1);
  EXPECT_EQ(mount.stat_value("reservation_failures"), 0);
  mount.stop();
}

TEST_F(RoomTest, FilesThatAreMerelyOpenTakeNone) {
  Mount mount({.pools = {"p:size=64M"}});
  ASSERT_EQ(save(mount.path() + "/first", pattern(1, 8 * kMiB), SIZE_MAX), 0);
  std::vector<File> idle;
  for (int i = 0; i < 200; ++i) {
    const int fd = ::open((mount.path() + "/idle-" + std::to_string(i)).c_str(), O_WRONLY | O_CREAT, 0644);
    ASSERT_GE(fd, 0) << i << " " << error_name(errno);
    idle.emplace_back(fd);
    if (i % 2 == 0) {
      ASSERT_EQ(::write(fd, "x", 1), 1) << i << " " << error_name(errno);
    }
  }
  // Another writer can have the rest of the pool, except the quarter kept for files that have begun to be
  // written.
  EXPECT_EQ(save(mount.path() + "/large", pattern(2, 40 * kMiB), kMiB), 0);
  // Each idle writer can go on, too.
  for (size_t i = 0; i < idle.size(); ++i)
    ASSERT_EQ(::write(idle[i].fd(), pattern(i, 64 * kKiB).data(), 64 * kKiB), static_cast<ssize_t>(64 * kKiB))
        << i << " " << error_name(errno);
  EXPECT_EQ(mount.stat_value("no_space_errors"), 0);
  mount.stop();
}

// Room kept for a writer that does not use it must not cost a file of another client between close and
// rename; and a preallocated file keeps no more than it has.
TEST_F(RoomTest, WhatIsPromisedCostsNobodyATemporaryFile) {
  Mount mount({.pools = {"p:size=16M"}});
  for (const std::string round : {"idle", "preallocated"}) {
    const File idle(::open((mount.path() + "/" + round).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    ASSERT_GE(idle.fd(), 0);
    const int allocated = round == "idle" ? 0 : ::fallocate(idle.fd(), 0, 0, 2 * kMiB);
    ASSERT_EQ(error_of(allocated), 0);
    std::vector<std::string> names;
    for (int i = 0; i < 12; ++i) {
      names.push_back(mount.path() + "/" + round + std::to_string(i));
      ASSERT_EQ(error_name(save(names.back() + ".tmp", pattern(i, kMiB), SIZE_MAX)), "ok") << i;
    }
    for (const std::string& name : names)
      EXPECT_EQ(error_of(::rename((name + ".tmp").c_str(), name.c_str())), 0) << name;
    EXPECT_EQ(mount.stat_value("reservation_failures"), 0);
    EXPECT_EQ(error_name(write_once(mount.control("evict"), "100%")), "ok");
  }
  mount.stop();
}

TEST_F(RoomTest, WhoGetsNoneIsCountedAndLogged) {
  Mount mount({.pools = {"p:size=16M"}});
  {
    const File file(mount.path() + "/file", O_WRONLY | O_CREAT);
    const std::string piece = pattern(1, kMiB);
    ssize_t written = 0;
    do {
      written = ::write(file.fd(), piece.data(), piece.size());
    } while (written > 0);
    EXPECT_EQ(error_name(errno), "ENOSPC");
  }
  EXPECT_TRUE(eventually([&] { return mount.stat_value("no_space_errors") > 0; }));
  EXPECT_TRUE(eventually([&] { return mount.log().find("pool p: a client") != std::string::npos; }));
  const File file(mount.path() + "/another", O_WRONLY | O_CREAT);
  const int64_t before = mount.stat_value("no_space_errors");
  EXPECT_EQ(error_name(error_of(::fallocate(file.fd(), 0, 0, 32 * kMiB))), "ENOSPC");
  EXPECT_EQ(mount.stat_value("no_space_errors"), before + 1);
  mount.stop();
}

// The pool is too full for a promise: writes go through the daemon, the mapping does not.
TEST_F(RoomTest, OneFileWrittenBothWays) {
  Mount mount({.pools = {"p:size=16M"}});
  fill(mount.path(), "e", 12);
  const std::string path = mount.path() + "/file";
  const File through_daemon(path, O_RDWR | O_CREAT);
  std::string content = pattern(1, 64 * kKiB);
  ASSERT_EQ(::write(through_daemon.fd(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  {
    const Mapping mapping(through_daemon.fd(), content.size(), PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    EXPECT_EQ(mapping.text(), content);
    const std::string other = pattern(2, 4 * kKiB);
    ASSERT_EQ(::pwrite(through_daemon.fd(), other.data(), other.size(), 8192), 4096);
    content.replace(8192, 4096, other);
    EXPECT_EQ(mapping.text(), content);
  }
  const File reader(path, O_RDONLY);
  EXPECT_EQ(read_at(reader.fd(), 0, content.size()), content);
  for (const off_t at : {0, 8192}) {
    const File copy(mount.path() + "/copy", O_RDWR | O_CREAT | O_TRUNC);
    off_t from = 0;
    ASSERT_EQ(::sendfile(copy.fd(), through_daemon.fd(), &from, content.size()),
              static_cast<ssize_t>(content.size()));
    EXPECT_EQ(read_at(copy.fd(), 0, content.size()), content);
    const std::string other = pattern(3, 100);
    ASSERT_EQ(::pwrite(through_daemon.fd(), other.data(), other.size(), at), 100);
    content.replace(static_cast<size_t>(at), 100, other);
  }
  EXPECT_EQ(read_at(through_daemon.fd(), 0, content.size()), content);
  mount.stop();
}

class FullPoolTest : public FaultedTierTest {
 protected:
  // Whether a thread of this process waits in the kernel.
  static bool sleeps(pid_t thread) {
    const std::string status = read_file("/proc/self/task/" + std::to_string(thread) + "/stat");
    const char state = status[status.rfind(')') + 2];
    return state == 'S' || state == 'D';
  }
};

// The target of a long symbolic link takes a page of the pool, and the evictor has not yet made one free.
TEST_F(FullPoolTest, ALongSymbolicLinkWaitsForTheEvictor) {
  start_pool("p:size=64M");
  fill_pool("e", 56);
  ASSERT_TRUE(all_closed(mount()));
  const std::string paused = fault_file() + ".paused";
  arm("pause name discarded");
  const File file(path("open"), O_WRONLY | O_CREAT);
  const std::string piece = pattern(1, 64 << 10);
  ssize_t written = 0;
  while ((written = ::write(file.fd(), piece.data(), piece.size())) > 0) continue;
  ASSERT_EQ(errno, ENOSPC);
  ASSERT_TRUE(eventually([&] { return exists(paused); }));
  const std::string target(300, 't');
  std::atomic<pid_t> thread{0};
  std::atomic<int> error{-1};
  std::thread linker([&] {
    thread = static_cast<pid_t>(::syscall(SYS_gettid));
    error = error_of(::symlink(target.c_str(), path("link").c_str()));
  });
  EXPECT_TRUE(eventually([&] { return error >= 0 || (thread > 0 && sleeps(thread)); }));
  ::unlink(paused.c_str());
  linker.join();
  EXPECT_EQ(error_name(error), "ok");
  std::string read(400, '\0');
  read.resize(std::max<ssize_t>(0, ::readlink(path("link").c_str(), read.data(), read.size())));
  EXPECT_EQ(read, target);
}

// A kernel without transparent huge pages refuses the mount option.
TEST_F(FullPoolTest, APoolWithoutHugePagesServes) {
  arm("failing mount huge 22");
  start_pool("p:size=16M");
  EXPECT_NE(mount().log().find("without huge pages"), std::string::npos);
  EXPECT_EQ(error_name(store(path("f"), pattern(1, kMiB))), "ok");
  EXPECT_EQ(difference(1, read_file(path("f"))), "");
}

}  // namespace
}  // namespace kvcachefs::test
