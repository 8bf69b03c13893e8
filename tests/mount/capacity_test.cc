// The size of a pool is a promise to writers that there is room, and to the machine that no more memory is
// used.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr int64_t kPoolBytes = 64 * kMiB;

class CapacityTest : public SharedMount<CapacityTest> {
 public:
  static MountOptions options() { return {.pools = {"p:size=64M"}}; }

 protected:
  void SetUp() override {
    SharedMount::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(write_once(mount().control("entry_size"), "auto"), 0);
    ASSERT_EQ(write_once(mount().control("watermarks"), "95:98"), 0);
    ASSERT_TRUE(used_is(0)) << mount().stat_value("used_bytes") << " bytes left of the test before";
  }
  static bool used_is(int64_t bytes) {
    return eventually([bytes] { return mount().stat_value("used_bytes") == bytes; });
  }
  // write_until_full() writes until a write fails; returns the bytes written and sets `error` to the errno.
  static size_t write_until_full(int fd, int* error) {
    const std::string piece = pattern(1, kMiB);
    size_t sum = 0;
    for (;;) {
      const ssize_t written = ::write(fd, piece.data(), piece.size());
      *error = error_of(written);
      if (written <= 0) return sum;
      sum += written;
    }
  }
};

TEST_F(CapacityTest, FullOfOpenFilesIsNoSpaceAndNotAHang) {
  const int result = in_child([] {
    std::vector<File> open_files;
    for (int i = 0; i < 100; ++i) {
      const int fd = ::open(path("o-" + std::to_string(i)).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
      if (fd < 0) return error_of(fd);
      open_files.emplace_back(fd);
      int error = 0;
      const std::string piece = pattern(i, kMiB);
      const ssize_t written = ::write(fd, piece.data(), piece.size());
      error = error_of(written);
      if (error != 0) return error;
    }
    return 0;
  });
  EXPECT_EQ(result, ENOSPC) << error_name(result);
  EXPECT_LE(mount().stat_value("used_bytes"), kPoolBytes);
  EXPECT_LE(tmpfs_used_bytes(mount()), static_cast<uint64_t>(kPoolBytes));
  // The child's end closed its files, and so there is room again.
  ASSERT_TRUE(all_closed(mount()));
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ(error_name(store(path("next-" + std::to_string(i)), pattern(i, kMiB))), "ok");
}

TEST_F(CapacityTest, OneFileLargerThanThePool) {
  int error = 0;
  size_t written = 0;
  {
    // The file stays open until it is unlinked. A closed file above the watermarks is evicted as soon as it
    // is not fresh any more.
    const File file(path("large"), O_WRONLY | O_CREAT);
    written = write_until_full(file.fd(), &error);
    EXPECT_EQ(read_file(path("large")).size(), written);
    ASSERT_EQ(::unlink(path("large").c_str()), 0);
  }
  EXPECT_EQ(error_name(error), "ENOSPC");
  EXPECT_LE(written, static_cast<size_t>(kPoolBytes));
  EXPECT_GE(written, static_cast<size_t>(kPoolBytes) * 9 / 10);
  EXPECT_TRUE(used_is(0)) << mount().stat_value("used_bytes");
}

TEST_F(CapacityTest, CreateInAFullPoolIsNoSpaceWithinBounds) {
  const File file(path("large"), O_WRONLY | O_CREAT);
  int error = 0;
  write_until_full(file.fd(), &error);
  const int result = in_child([] {
    const int fd = ::open(path("small").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) return error_of(fd);
    const std::string piece(kMiB, 'x');
    for (int i = 0; i < 10; ++i) {
      const ssize_t written = ::write(fd, piece.data(), piece.size());
      if (written < 0) return error_of(written);
    }
    return 0;
  });
  EXPECT_EQ(error_name(result), "ENOSPC");
}

TEST_F(CapacityTest, AllocationBeyondThePoolIsNoSpace) {
  ASSERT_EQ(write_once(mount().control("entry_size"), "1M"), 0);
  const File file(path("file"), O_RDWR | O_CREAT);
  EXPECT_EQ(error_name(error_of(::fallocate(file.fd(), 0, 0, 2 * kPoolBytes))), "ENOSPC");
  EXPECT_EQ(error_name(error_of(::fallocate(file.fd(), 0, 0, kPoolBytes / 2))), "ok");
  EXPECT_GE(mount().stat_value("used_bytes"), kPoolBytes / 2);
  EXPECT_EQ(error_name(error_of(::ftruncate(file.fd(), 0))), "ok");
  EXPECT_TRUE(eventually([] { return mount().stat_value("used_bytes") <= static_cast<int64_t>(4 * kMiB); }))
      << mount().stat_value("used_bytes");
}

TEST_F(CapacityTest, AllocationMakesRoomByEviction) {
  fill(mount().path(), "e", 70);
  ASSERT_TRUE(all_closed(mount()));
  const File file(path("file"), O_RDWR | O_CREAT);
  EXPECT_EQ(error_name(error_of(::fallocate(file.fd(), 0, 0, 40 * kMiB))), "ok");
  EXPECT_LE(tmpfs_used_bytes(mount()), static_cast<uint64_t>(kPoolBytes));
}

// Passthrough writes bypass the daemon: a file may outgrow its reservation by as much as the watermarks keep
// free.
TEST_F(CapacityTest, AFileMayOutgrowItsReservationByWhatIsKeptFree) {
  ASSERT_EQ(write_once(mount().control("entry_size"), "1M"), 0);
  ASSERT_EQ(write_once(mount().control("watermarks"), "40:50"), 0);
  fill(mount().path(), "e", 70);
  ASSERT_TRUE(eventually([] { return mount().stat_value("used_bytes") <= kPoolBytes / 2; }));
  // A closed file may be evicted, as all older ones were; this one stays open.
  const File large(path("large"), O_RDWR | O_CREAT);
  const std::string content = pattern(3, 24 * kMiB);
  ASSERT_EQ(::write(large.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  EXPECT_EQ(difference(3, read_at(large.fd(), 0, content.size())), "");
}

TEST_F(CapacityTest, WritesThroughTheDaemonMakeTheirOwnRoom) {
  ASSERT_EQ(write_once(mount().control("entry_size"), "1M"), 0);
  fill(mount().path(), "e", 70);
  ASSERT_TRUE(all_closed(mount()));
  EXPECT_EQ(error_name(store(path("large"), pattern(3, 40 * kMiB))), "ok");
  EXPECT_EQ(difference(3, read_file(path("large"))), "");
  EXPECT_LE(tmpfs_used_bytes(mount()), static_cast<uint64_t>(kPoolBytes));
}

TEST_F(CapacityTest, CopiesMakeTheirOwnRoom) {
  ASSERT_EQ(write_once(mount().control("entry_size"), "1M"), 0);
  ASSERT_EQ(error_name(store(path("original"), pattern(3, 24 * kMiB))), "ok");
  const File original(path("original"), O_RDONLY);
  fill(mount().path(), "e", 70);
  const File copy(path("copy"), O_RDWR | O_CREAT);
  for (off_t done = 0; done < static_cast<off_t>(24 * kMiB);) {
    off_t from = done;
    off_t to = done;
    const ssize_t copied = ::copy_file_range(original.fd(), &from, copy.fd(), &to, 24 * kMiB - done, 0);
    ASSERT_GT(copied, 0) << error_name(errno) << " after " << done;
    done += copied;
  }
  EXPECT_EQ(difference(3, read_at(copy.fd(), 0, 24 * kMiB)), "");
  EXPECT_LE(tmpfs_used_bytes(mount()), static_cast<uint64_t>(kPoolBytes));
}

TEST_F(CapacityTest, MemoryOfAnUnlinkedFileComesBackAtTheLastClose) {
  File file(path("file"), O_RDWR | O_CREAT);
  const std::string content = pattern(1, 8 * kMiB);
  ASSERT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  ASSERT_EQ(::unlink(path("file").c_str()), 0);
  EXPECT_GE(mount().stat_value("used_bytes"), static_cast<int64_t>(8 * kMiB));
  EXPECT_EQ(difference(1, read_at(file.fd(), 0, 8 * kMiB)), "");
  file.close();
  EXPECT_TRUE(used_is(0)) << mount().stat_value("used_bytes");
  EXPECT_EQ(tmpfs_used_bytes(mount()), 0u);
}

TEST_F(CapacityTest, MemoryOfAnUnlinkedMappedFileComesBackAtTheUnmap) {
  {
    write_file(path("file"), pattern(1, 8 * kMiB));
    const Mapping mapping(File(path("file"), O_RDONLY).fd(), 8 * kMiB, PROT_READ, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    ASSERT_EQ(::unlink(path("file").c_str()), 0);
    EXPECT_EQ(difference(1, mapping.text()), "");
    EXPECT_GE(tmpfs_used_bytes(mount()), 8 * kMiB);
  }
  EXPECT_TRUE(used_is(0)) << mount().stat_value("used_bytes");
}

TEST_F(CapacityTest, ReservationsAreTrimmedAtClose) {
  ASSERT_EQ(write_once(mount().control("entry_size"), "4M"), 0);
  const int64_t reservations = mount().stat_value("reservations");
  const std::string content = pattern(1, 100'000);
  {
    const File file(path("file"), O_RDWR | O_CREAT);
    ASSERT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
    EXPECT_GE(mount().stat_value("used_bytes"), static_cast<int64_t>(4 * kMiB))
        << "reserved while it is written";
  }
  EXPECT_EQ(mount().stat_value("reservations"), reservations + 1);
  EXPECT_TRUE(eventually([] { return mount().stat_value("used_bytes") <= 104 * 1024; }))
      << mount().stat_value("used_bytes");
  struct stat status {};
  ASSERT_EQ(::stat(path("file").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 100'000);
  EXPECT_LE(status.st_blocks * 512, 104 * 1024);
  EXPECT_GT(status.st_blocks, 0);
  EXPECT_EQ(difference(1, read_file(path("file"))), "");
}

// The close of a duplicate, also in a client's child, does not tell whether another descriptor is still
// written.
TEST_F(CapacityTest, ReservationsStayUntilTheLastClose) {
  ASSERT_EQ(write_once(mount().control("entry_size"), "4M"), 0);
  File file(path("file"), O_RDWR | O_CREAT);
  File duplicate(::fcntl(file.fd(), F_DUPFD_CLOEXEC, 0));
  const std::string content = pattern(1, 100'000);
  ASSERT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  file.close();
  EXPECT_GE(mount().stat_value("used_bytes"), static_cast<int64_t>(4 * kMiB));
  EXPECT_EQ(difference(1, read_at(duplicate.fd(), 0, content.size())), "");
  ASSERT_EQ(::pwrite(duplicate.fd(), content.data(), content.size(), 100'000), 100'000);
  EXPECT_EQ(read_file(path("file")), content + content);
  duplicate.close();
  EXPECT_TRUE(eventually([] { return mount().stat_value("used_bytes") <= 204 * 1024; }))
      << mount().stat_value("used_bytes");
  EXPECT_EQ(read_file(path("file")), content + content);
}

TEST(EntrySizeGuess, IsLearned) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=64M"}});
  EXPECT_EQ(read_file(mount.control("entry_size")), "auto\n");
  fill(mount.path(), "e", 40, 2 * kMiB);
  EXPECT_EQ(read_file(mount.control("entry_size")), "auto 2M\n");
  EXPECT_EQ(mount.stat_value("entry_size_bytes"), static_cast<int64_t>(2 * kMiB));
  mount.stop();
}

// Writes this much to a new file that has a name for the time, as store() does. Returns by how many bytes the
// pool is fuller while the file is open, less the memory that files closed before give back meanwhile.
int64_t taken_by_writer(const Mount& mount, const std::string& name, size_t bytes) {
  EXPECT_TRUE(all_closed(mount)) << "a size is learned at the end of a close";
  const int64_t before = mount.stat_value("used_bytes");
  const File file(mount.path() + "/" + name + ".tmp", O_WRONLY | O_CREAT);
  const std::string content = pattern(1, bytes);
  EXPECT_EQ(::write(file.fd(), content.data(), bytes), static_cast<ssize_t>(bytes));
  return mount.stat_value("used_bytes") - before;
}

// As LMCache writes them: beside the data of each block a small file of what is in it.
TEST(EntrySizeGuess, TellsSmallFilesFromLargeOnesByTheirNames) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=256M"}});
  for (const std::string name : {"3f07.data", "a2.data"}) {
    ASSERT_EQ(store(mount.path() + "/" + name, pattern(1, 16 * kMiB)), 0);
    ASSERT_EQ(store(mount.path() + "/" + name + ".metadata", pattern(1, 4096)), 0);
  }
  EXPECT_LT(taken_by_writer(mount, "91.data.metadata", 4096), static_cast<int64_t>(kMiB));
  EXPECT_GE(taken_by_writer(mount, "91.data", 4096), static_cast<int64_t>(15 * kMiB));
  mount.stop();
}

// A huge page would be cleared for each small one.
TEST(EntrySizeGuess, LeavesTheFirstHugePageToNamesOfBothKinds) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=256M"}});
  for (const size_t bytes : {16 * kMiB, 16 * kMiB, size_t{4096}})
    ASSERT_EQ(store(mount.path() + "/" + std::to_string(bytes), pattern(1, bytes)), 0);
  const int64_t taken = taken_by_writer(mount, "1", 4096);
  EXPECT_GE(taken, static_cast<int64_t>(14 * kMiB));
  EXPECT_LT(taken, static_cast<int64_t>(15 * kMiB));
  mount.stop();
}

// The reservation for the next entry is a guess, and a wrong guess must not evict entries that have room.
TEST(EntrySizeGuess, AFewLargeFilesDoNotMakeSmallOnesEvict) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=64M"}});
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(store(mount.path() + "/large", pattern(i, 20 * kMiB)), 0);
    ASSERT_EQ(::unlink((mount.path() + "/large").c_str()), 0);
  }
  const auto names = fill(mount.path(), "small", 50);
  EXPECT_EQ(survivors(names).size(), 50u) << "of 64M only 50M are used";
  EXPECT_EQ(mount.stat_value("discards"), 0);
  mount.stop();
}

TEST_F(CapacityTest, SmallFilesInNumbers) {
  constexpr int kFiles = 20'000;
  const std::string content(100, 'x');
  // The pool has fewer than 20,000 pages.
  for (int i = 0; i < kFiles; ++i) write_file(path("s-" + std::to_string(i)), content);
  EXPECT_LE(tmpfs_used_bytes(mount()), static_cast<uint64_t>(kPoolBytes));
  const size_t left = list(mount().path()).size();
  EXPECT_GT(left, 10'000u);
  EXPECT_LT(left, every_pool_spills() ? size_t{kFiles + 1} : 16'385u);
  EXPECT_EQ(read_file(path("s-" + std::to_string(kFiles - 1))), content);
}

TEST_F(CapacityTest, FourWritersFillFourTimesThePool) {
  std::atomic<int> failures = 0;
  std::atomic<bool> done = false;
  uint64_t peak = 0;
  std::vector<std::thread> writers;
  for (int w = 0; w < 4; ++w) {
    writers.emplace_back([w, &failures] {
      for (int i = 0; i < 64; ++i) {
        const std::string name = path("w" + std::to_string(w) + "-" + std::to_string(i));
        const int error = store(name, pattern(i, kMiB));
        if (error != 0) ++failures;
        EXPECT_EQ(error_name(error), "ok") << name;
      }
    });
  }
  std::thread watcher([&] {
    while (!done) peak = std::max(peak, tmpfs_used_bytes(mount()));
  });
  for (std::thread& writer : writers) writer.join();
  done = true;
  watcher.join();
  EXPECT_EQ(failures, 0);
  EXPECT_LE(peak, static_cast<uint64_t>(kPoolBytes));
}

struct Space {
  uint64_t bytes;
  uint64_t free_bytes;
  uint64_t available_bytes;
};
Space space_of(const std::string& path) {
  struct statvfs space {};
  EXPECT_EQ(::statvfs(path.c_str(), &space), 0);
  return {space.f_blocks * space.f_frsize, space.f_bfree * space.f_frsize, space.f_bavail * space.f_frsize};
}

// SGLang clamps its max_size to the first number; other clients refuse a budget above the last (the available
// bytes).
TEST(SpaceOfAPool, IsWhatItCanHold) {
  KVCACHEFS_NEED_DAEMON();
  const DiskDirectory disk;
  const auto spill = [&](const std::string& name) {
    return ",spill=" + disk / name + ",spill_size=128M,catalog=" + disk / (name + ".catalog");
  };
  std::vector<std::string> pools = {"memory:size=32M"};
  if (mode() != Mode::kIoUring) {
    pools.push_back("both:size=32M,durability=none" + spill("both"));
    pools.push_back("durable:size=32M,durability=writeback" + spill("durable"));
  }
  Mount mount({.pools = pools});
  mount.stop_squeezing();
  if (!every_pool_spills()) {
    EXPECT_EQ(space_of(mount.path("memory")).bytes, 30 * kMiB) << "the rest is kept free for writers";
    const File open(mount.path("memory") + "/open", O_WRONLY | O_CREAT);
    ASSERT_EQ(::write(open.fd(), "x", 1), 1);
    write_file(mount.path("memory") + "/pinned", pattern(1, kMiB));
    ASSERT_EQ(set_xattr(mount.path("memory") + "/pinned", "user.kvcachefs.pinned", "1"), 0);
    EXPECT_EQ(space_of(mount.path("memory")).available_bytes, 30 * kMiB) << "a budget of all of it is one";
    EXPECT_LE(space_of(mount.path("memory")).free_bytes, 29 * kMiB);
  }
  if (mode() != Mode::kIoUring) {
    EXPECT_EQ(space_of(mount.path("both")).bytes, 128 * kMiB) << "what is read is there twice";
    EXPECT_EQ(space_of(mount.path("both")).available_bytes, 128 * kMiB);
    EXPECT_EQ(space_of(mount.path("durable")).bytes, 128 * kMiB) << "all of it is to lie there";
    fill(mount.path("both"), "e", 64);
    EXPECT_TRUE(eventually([&] {
      const uint64_t held_bytes = 128 * kMiB - space_of(mount.path("both")).free_bytes;
      return held_bytes == static_cast<uint64_t>(mount.stat_value("used_bytes", "both") +
                                                 mount.stat_value("cold_bytes", "both"));
    }));
    // The statistics show each tier alone.
    EXPECT_EQ(mount.stat_value("size_bytes", "both"), static_cast<int64_t>(32 * kMiB));
    EXPECT_EQ(mount.stat_value("spill_size_bytes", "both"), static_cast<int64_t>(128 * kMiB));
  }
  mount.stop();
}

TEST(HugePages, LargeEntriesLieInThem) {
  KVCACHEFS_NEED_DAEMON();
  Mount mount({.pools = {"p:size=512M"}});
  mount.stop_squeezing();
  // If the daemon writes it, the first file grows in small pieces, because the pool does not know its size
  // yet.
  fill(mount.path(), "e", 16, 16 * kMiB);
  ASSERT_TRUE(all_closed(mount));
  const int64_t used = mount.stat_value("used_bytes");
  EXPECT_EQ(used, static_cast<int64_t>(256 * kMiB));
  EXPECT_GE(mount.stat_value("huge_bytes"), used * 9 / 10);
  mount.stop();
}

}  // namespace
}  // namespace kvcachefs::test
