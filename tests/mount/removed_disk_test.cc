// Pools with a disk tier that are removed: what clients have open of them, what becomes of the disk, and that
// nothing of it is in the way of others.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/freezable_disk.h"
#include "tests/support/pool_pressure.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

class RemovedDiskTest : public FaultedTierTest {
 protected:
  std::string extra(const std::string& name = "") { return mount().root() + "/extra/" + name; }
  void make_pool() { ASSERT_EQ(error_name(error_of(::mkdir(extra().c_str(), 0755))), "ok"); }
  int remove_pool() { return error_of(::rmdir(extra().c_str())); }
  int give_disk(const std::string& file, const std::string& size = "64M") {
    return write_once(mount().administrators("spill", "extra"), file + " " + size);
  }
  int set_extra(const std::string& file, const std::string& value) {
    return write_once(mount().place_to_write(file, "extra"), value);
  }
  void write_in_full_removed_pool(bool with_disk);
  void sync_extra() {
    const File root(extra(), O_RDONLY | O_DIRECTORY);
    ASSERT_EQ(error_name(error_of(::fsync(root.fd()))), "ok");
  }
  std::string spill2() const { return disk() / "spill2"; }
  int64_t xstat(const std::string& name) { return mount().stat_value(name, "extra"); }
};

// An open, unlinked file of a removed pool with a disk tier: fsync, O_SYNC writes, closes.
TEST_F(RemovedDiskTest, FsyncOfWhatIsOpenGoesOn) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(give_disk(spill2())), "ok");
  const std::string content = "content";
  File file(extra("file"), O_RDWR | O_CREAT);
  File synced(extra("synced"), O_RDWR | O_CREAT | O_SYNC);
  ASSERT_EQ(::write(file.fd(), content.data(), content.size()), 7);
  ASSERT_EQ(::write(synced.fd(), content.data(), content.size()), 7);
  ASSERT_EQ(::unlink(extra("file").c_str()), 0);
  ASSERT_EQ(::unlink(extra("synced").c_str()), 0);
  EXPECT_EQ(error_name(error_of(::fsync(file.fd()))), "ok");
  ASSERT_EQ(remove_pool(), 0);
  ASSERT_TRUE(eventually([&] { return !exists(extra()); }));
  EXPECT_EQ(error_name(error_of(::fsync(file.fd()))), "ok");
  EXPECT_EQ(error_name(error_of(::pwrite(synced.fd(), content.data(), 7, 0) < 0 ? -1 : 0)), "ok") << "O_SYNC";
  EXPECT_EQ(error_name(error_of(::close(::dup(file.fd())))), "ok");
  replace_server();
  EXPECT_EQ(error_name(error_of(::fsync(file.fd()))), "ok") << "after";
  EXPECT_EQ(error_name(error_of(::pwrite(synced.fd(), content.data(), 7, 0) < 0 ? -1 : 0)), "ok") << "after";
}

// The same with durability=sync: each close.
TEST_F(RemovedDiskTest, CloseWithSyncDurability) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(give_disk(spill2())), "ok");
  ASSERT_EQ(error_name(set_extra("durability", "sync")), "ok");
  File file(extra("file"), O_RDWR | O_CREAT);
  ASSERT_EQ(::write(file.fd(), "content", 7), 7);
  ASSERT_EQ(::unlink(extra("file").c_str()), 0);
  ASSERT_EQ(remove_pool(), 0);
  EXPECT_EQ(error_name(error_of(::close(::dup(file.fd())))), "ok");
}

// An entry that is served from the disk and has been unlinked keeps the pool.
TEST_F(RemovedDiskTest, APoolStaysWhileAnEntryIsServedFromItsDisk) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(set_extra("size", "32M")), "ok");
  ASSERT_EQ(error_name(give_disk(spill2())), "ok");
  const auto cold = fill(extra(), "cold", 3, kMiB + 777);
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(write_once(mount().control("evict", "extra"), "1000000 entries"), 0);
    return xstat("cold_entries") == xstat("entries");
  }));
  const auto names = fill(extra(), "held", 31);
  std::vector<File> readers;
  for (const auto& name : names) readers.emplace_back(name, O_RDONLY);
  File reader(cold[1], O_RDONLY);
  ASSERT_EQ(xstat("served_from_disk"), 1);
  const std::string content = pattern(1, kMiB + 777);
  EXPECT_EQ(read_at(reader.fd(), 0, kMiB + 777), content);
  for (const auto& name : names) ASSERT_EQ(::unlink(name.c_str()), 0);
  for (const auto& name : cold) ASSERT_EQ(::unlink(name.c_str()), 0);
  EXPECT_EQ(read_at(reader.fd(), 0, kMiB + 777), content) << "unlinked";
  readers.clear();
  EXPECT_EQ(error_name(remove_pool()), "EBUSY");
  EXPECT_EQ(read_at(reader.fd(), 0, kMiB + 777), content) << "refused";
  replace_server();
  EXPECT_EQ(read_at(reader.fd(), 0, kMiB + 777), content) << "replaced";
  EXPECT_EQ(error_name(remove_pool()), "EBUSY");
  reader.close();
  EXPECT_TRUE(eventually([&] { return remove_pool() == 0; }));
  make_pool();
  EXPECT_TRUE(eventually([&] { return give_disk(spill2()) == 0; })) << "the disk of a removed pool";
  EXPECT_EQ(list(extra()), std::vector<std::string>());
}

// The entries that were removed with the pool do not come back with its disk.
TEST_F(RemovedDiskTest, WhatWasRemovedStaysAway) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(set_extra("size", "64M")), "ok");
  ASSERT_EQ(error_name(give_disk(spill2(), "1G")), "ok");
  ASSERT_EQ(error_name(set_extra("durability", "writeback")), "ok");
  constexpr int kMany = 9000;
  for (int i = 0; i < kMany; ++i) write_file(extra("e" + std::to_string(i)), "x");
  File dir(extra(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(error_name(error_of(::fsync(dir.fd()))), "ok");
  arm("pause disk flushed");  // a disk that is slow this moment
  write_file(extra("last"), "x");
  ASSERT_TRUE(eventually([&] { return exists(fault_file() + ".paused"); }));
  for (int i = 0; i < kMany; ++i) ::unlink(extra("e" + std::to_string(i)).c_str());
  ::unlink(extra("last").c_str());
  dir.close();
  auto removed = std::async(std::launch::async, [&] { return remove_pool(); });
  EXPECT_EQ(removed.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout)
      << "before the disk has it";
  ::unlink((fault_file() + ".paused").c_str());
  // A disk that needs more than 2 s for all of it is answered for by EBUSY.
  EXPECT_TRUE(removed.get() == 0 || eventually([&] { return remove_pool() == 0; }));
  make_pool();
  ASSERT_TRUE(eventually([&] { return give_disk(spill2(), "1G") == 0; }));
  EXPECT_EQ(list(extra()).size(), 0u) << "are back";
}

TEST_F(RemovedDiskTest, WhatWasRemovedStaysAwayOverADeath) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(give_disk(spill2())), "ok");
  ASSERT_EQ(error_name(set_extra("durability", "writeback")), "ok");
  for (int i = 0; i < 100; ++i) write_file(extra("e" + std::to_string(i)), "secret");
  sync_extra();
  for (int i = 0; i < 100; ++i) ::unlink(extra("e" + std::to_string(i)).c_str());
  die_at("pool removed", [&] { EXPECT_EQ(error_name(remove_pool()), "ok"); });
  make_pool();
  ASSERT_TRUE(eventually([&] { return give_disk(spill2()) == 0; }));
  EXPECT_EQ(list(extra()).size(), 0u) << "are back";
}

// The disk of a pool that is being removed stands still: the eviction from all others goes on.
TEST_F(RemovedDiskTest, AStandingDiskStopsNoOtherPool) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  FreezableDisk slow(disk(), 128 * kMiB);
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(give_disk(slow.path() + "/spill")), "ok");
  ASSERT_EQ(error_name(set_extra("durability", "writeback")), "ok");
  write_file(extra("e"), pattern(1, kMiB));
  sync_extra();
  slow.freeze();
  write_file(extra("f"), pattern(1, kMiB));
  ASSERT_EQ(::unlink(extra("e").c_str()), 0);
  ASSERT_EQ(::unlink(extra("f").c_str()), 0);
  auto removed = std::async(std::launch::async, [&] { return remove_pool(); });
  for (int i = 0; i < 80; ++i)
    EXPECT_EQ(error_name(store(path("n" + std::to_string(i)), pattern(i, kMiB))), "ok") << i;
  const std::string third = mount().root() + "/third";
  auto made = std::async(std::launch::async, [&] { return error_of(::mkdir(third.c_str(), 0755)); });
  EXPECT_EQ(made.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  EXPECT_EQ(removed.wait_for(std::chrono::seconds(60)), std::future_status::ready);
  slow.thaw();
  EXPECT_EQ(error_name(made.get()), "ok");
  EXPECT_EQ(error_name(removed.get()), "EBUSY") << "the disk has not heard of what was removed";
  EXPECT_TRUE(eventually([&] { return remove_pool() == 0; }));
  stop();
}

// A removed pool that is full: who writes in it is told so, and keeps no thread of the daemon.
void RemovedDiskTest::write_in_full_removed_pool(bool with_disk) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(set_extra("size", "32M")), "ok");
  if (with_disk) {
    ASSERT_EQ(error_name(give_disk(spill2())), "ok");
    ASSERT_EQ(error_name(set_extra("durability", "writeback")), "ok");
  }
  constexpr int kThreads = 24;
  std::vector<File> files;
  for (int i = 0; i < kThreads; ++i) {
    files.emplace_back(extra("f" + std::to_string(i)), O_RDWR | O_CREAT);
    ASSERT_EQ(::write(files.back().fd(), "x", 1), 1);
  }
  const std::string block(kMiB, 'x');
  for (int i = 0; i < 64; ++i)
    if (::pwrite(files[0].fd(), block.data(), block.size(), i * kMiB) < 0) break;
  const double before = seconds_of([&] { (void)!::pwrite(files[1].fd(), block.data(), block.size(), 0); });
  for (int i = 0; i < kThreads; ++i) ASSERT_EQ(::unlink(extra("f" + std::to_string(i)).c_str()), 0);
  ASSERT_EQ(error_name(remove_pool()), "ok");
  std::atomic<bool> ends{false};
  std::vector<std::thread> writers;
  std::atomic<int> answered{0};
  for (int i = 1; i < kThreads; ++i)
    writers.emplace_back([&, i] {
      while (!ends) {
        (void)!::pwrite(files[i].fd(), block.data(), block.size(), 0);
        ++answered;
      }
    });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const double others = seconds_of([&] { EXPECT_FALSE(exists(path("nothing"))); });
  ends = true;
  const double after = seconds_of([&] {
    for (auto& writer : writers) writer.join();
  });
  EXPECT_LT(others, 1.0) << "s for another client's lookup; a write was " << before << " s before, the last "
                         << after << " s";
}

TEST_F(RemovedDiskTest, AFullRemovedPoolKeepsNobodyWaiting) {
  write_in_full_removed_pool(false);
}
TEST_F(RemovedDiskTest, AFullRemovedPoolWithADiskKeepsNobodyWaiting) {
  write_in_full_removed_pool(true);
}

// An entry that is removed while the disk is away is still on the disk: the pool stays until the catalog has
// recorded the removal.
TEST_F(RemovedDiskTest, APoolStaysWhileItsDiskIsAway) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(give_disk(spill2())), "ok");
  ASSERT_EQ(error_name(set_extra("durability", "writeback")), "ok");
  for (int i = 0; i < 10; ++i) write_file(extra("e" + std::to_string(i)), "secret");
  sync_extra();
  ASSERT_EQ(::rename(spill2().c_str(), (spill2() + ".away").c_str()), 0);
  replace_server();
  for (int i = 0; i < 10; ++i)
    EXPECT_EQ(error_name(error_of(::unlink(extra("e" + std::to_string(i)).c_str()))), "ok");
  EXPECT_EQ(error_name(remove_pool()), "EBUSY");
  ASSERT_EQ(::rename((spill2() + ".away").c_str(), spill2().c_str()), 0);
  EXPECT_TRUE(eventually([&] { return remove_pool() == 0; }));
  make_pool();
  ASSERT_TRUE(eventually([&] { return give_disk(spill2()) == 0; }));
  EXPECT_EQ(list(extra()).size(), 0u) << "are back";
}

}  // namespace
}  // namespace kvcachefs::test
