// The disk or the state directory of a disk tier fails while the pool serves: which entries are lost, what is
// reported, and that clients notice nothing else.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/freezable_disk.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

class SpillFaultsTest : public DiskTierTest {
 protected:
  std::vector<std::string> in_pool(const std::string& name, int count) {
    std::vector<std::string> names;
    for (int i = 0; i < count; ++i) names.push_back(path(name + "-" + std::to_string(i)));
    return names;
  }
};

TEST_F(SpillFaultsTest, WithoutDurabilityASlowDiskStopsNobody) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  FreezableDisk slow(disk(), 768 * kMiB);
  start_pool("p:size=128M,durability=none,spill=" + slow.path() +
             "/spill,spill_size=512M,catalog=" + (disk() / "catalog"));
  slow.freeze();
  const auto names = fill_pool("e", 300);
  EXPECT_GT(stat("overrun_discards"), 0);
  EXPECT_EQ(stat("spills"), 0);
  const size_t left = survivors(names).size();
  EXPECT_LE(left, 128u);
  EXPECT_GE(left, 60u) << "it gives up more than it has to";
  slow.thaw();
  EXPECT_EQ(check_whole(names), static_cast<int>(survivors(names).size()));
  const auto more = fill_pool("f", 200);
  EXPECT_GT(stat("spills"), 0);
  EXPECT_EQ(check_whole(more), static_cast<int>(survivors(more).size()));
  stop();
}

// Writers wait for a slow disk if their entries have to be kept.
TEST_F(SpillFaultsTest, WithDurabilityASlowDiskCostsNoEntry) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  FreezableDisk slow(disk(), 768 * kMiB);
  start_pool("p:size=128M,durability=writeback,spill=" + slow.path() +
             "/spill,spill_size=512M,catalog=" + (disk() / "catalog"));
  // A create that waits holds the pool's directory in the kernel, and so does a lookup there of a name that
  // the kernel does not know. The control file is therefore looked up before.
  const File known(mount().control("stats"), O_PATH);
  slow.freeze();
  auto stored = std::async(std::launch::async, [&] { return fill_pool("e", 250); });
  EXPECT_TRUE(rises_to("dirty_bytes", static_cast<int64_t>(64 * kMiB)));
  EXPECT_EQ(stored.wait_for(std::chrono::seconds(2)), std::future_status::timeout);
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_EQ(stat("spills"), 0);
  slow.thaw();
  const auto names = stored.get();
  EXPECT_EQ(check_whole(names), 250);
  EXPECT_EQ(stat("discards"), 0);
  stop();
}

// A pool with durability=none discards entries for which the disk is too slow, except one that an fsync waits
// for.
TEST_F(SpillFaultsTest, WhatAnFsyncWaitsForIsNotDiscardedMeanwhile) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  FreezableDisk slow(disk(), 768 * kMiB);
  const std::string pool = "p:size=128M,durability=none,spill=" + slow.path() +
                           "/spill,spill_size=512M,catalog=" + (disk() / "catalog");
  start_pool(pool);
  make_directory(path("d"));
  slow.freeze();
  fill_pool("before", 200);  // the disk then has as many requests as it takes at a time
  ASSERT_EQ(error_name(store(path("d/promised"), pattern(1, kMiB))), "ok");
  std::atomic<pid_t> waiting_thread{0};
  std::future<int> synced = std::async(std::launch::async, [&] {
    const File directory(path("d"), O_RDONLY | O_DIRECTORY);
    waiting_thread = ::gettid();
    return error_of(::fsync(directory.fd()));
  });
  const auto in_fsync = [&] {
    const std::string state = read_file("/proc/self/task/" + std::to_string(waiting_thread) + "/syscall");
    return state.starts_with(std::to_string(SYS_fsync) + " ");
  };
  ASSERT_TRUE(eventually([&] { return waiting_thread != 0 && in_fsync(); }));
  fill_pool("e", 300);
  EXPECT_GT(stat("overrun_discards"), 0);
  EXPECT_EQ(stat("spills"), 0);
  slow.thaw();
  EXPECT_EQ(error_name(synced.get()), "ok");
  kill();
  start_pool(pool);
  EXPECT_EQ(difference(1, read_file(path("d/promised"))), "");
  stop();  // before the disk's file system goes
}

TEST_F(SpillFaultsTest, AReadErrorCostsNothing) {
  start();
  const auto names = fill_pool("e", 16);
  make_all_cold();
  // The entries behind the cut cannot be read, and only those.
  ASSERT_EQ(::truncate(spill_file().c_str(), 8 * kMiB), 0);
  int unreadable = 0;
  for (int i = 0; i < 16; ++i) {
    std::string content;
    const int error = load(names[i], &content);
    if (error == 0) {
      EXPECT_EQ(difference(i, content), "");
      continue;
    }
    EXPECT_EQ(error_name(error), "EIO") << names[i];
    ++unreadable;
  }
  EXPECT_GE(unreadable, 8);
  EXPECT_LE(unreadable, 9);
  EXPECT_EQ(stat("promote_errors"), unreadable);
  EXPECT_EQ(stat("checksum_errors"), 0);
  EXPECT_EQ(stat("entries"), 16);
  EXPECT_NE(mount().log().find("read error 5"), std::string::npos);
  // Entries stored again get other places, and the old places are good again once they have been written.
  fill_pool("e", 16);
  const auto again = fill_pool("again", 16);
  make_all_cold();
  EXPECT_EQ(check_whole(names), 16);
  EXPECT_EQ(check_whole(again), 16);
}

TEST_F(SpillFaultsTest, AFullStateDirectoryLosesNothing) {
  const PlainTmpfs state("size=512K");
  const std::string pool =
      "p:size=32M,spill_size=128M,spill=" + spill_file() + ",catalog=" + state.path() + "/catalog";
  start_pool(pool);
  const auto names = fill_pool("e", 60, 300'000);
  for (const std::string& name : names)
    ASSERT_EQ(set_xattr(name, "user.note", std::string(16'000, 'x')), 0) << name;
  EXPECT_TRUE(rises_to("catalog_errors", 1));
  EXPECT_NE(mount().log().find("are kept in memory until the catalog can be written again"),
            std::string::npos);
  EXPECT_NE(error_name(sync_directory()), "ok") << "not durable, and said to be";
  const auto more = fill_pool("f", 60, 300'000);
  EXPECT_EQ(check_whole(names), 60);
  EXPECT_EQ(check_whole(more), 60);
  ASSERT_EQ(::mount("none", state.path().c_str(), nullptr, MS_REMOUNT, "size=64M"), 0);
  EXPECT_TRUE(eventually([&] { return sync_directory() == 0; }));
  EXPECT_NE(mount().log().find("the catalog is written again"), std::string::npos);
  kill();
  start_pool(pool);
  EXPECT_EQ(check_whole(in_pool("e", 60)), 60);
  EXPECT_EQ(check_whole(in_pool("f", 60)), 60);
  EXPECT_EQ(xattr(path("e-59"), "user.note"), std::string(16'000, 'x'));
  stop();  // before the state directory goes
}

// The disk is full, and the removals that would make room there cannot be written to the catalog for longer
// than a copy waits for room.
TEST_F(SpillFaultsTest, AFullDiskWaitsForItsCatalog) {
  constexpr auto kPatience = std::chrono::seconds(11);
  const PlainTmpfs state("size=4M");
  start_pool("p:size=96M,spill_size=64M,spill=" + spill_file() + ",catalog=" + state.path() + "/catalog");
  const auto names = fill_pool("e", 40);
  ASSERT_EQ(error_name(sync_directory()), "ok");
  {
    const File filler(state.path() + "/filler", O_CREAT | O_WRONLY);
    const std::string page(4096, 'x');
    while (::write(filler.fd(), page.data(), page.size()) == static_cast<ssize_t>(page.size())) {
    }
  }
  for (const std::string& name : names)
    ASSERT_EQ(set_xattr(name, "user.note", std::string(60'000, 'x')), 0) << name;
  EXPECT_TRUE(rises_to("catalog_errors", 1));
  for (int i = 0; i < 40; ++i) ASSERT_EQ(error_name(store(names[i], pattern(100 + i, kMiB))), "ok");
  EXPECT_TRUE(eventually([&] { return stat("spill_free_bytes") < static_cast<int64_t>(kMiB); }));
  const auto full_since = std::chrono::steady_clock::now();
  EXPECT_TRUE(
      eventually([&] { return std::chrono::steady_clock::now() - full_since > kPatience; }, 2 * kPatience));
  const int64_t dirty = stat("dirty_entries");
  EXPECT_GE(dirty, 10);
  auto ordered = std::async(std::launch::async, [&] { order(mount(), "100%"); });
  EXPECT_TRUE(becomes("clean_entries", 0));
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_EQ(stat("dirty_entries"), dirty);
  ASSERT_EQ(::unlink((state.path() + "/filler").c_str()), 0);
  ASSERT_EQ(::mount("none", state.path().c_str(), nullptr, MS_REMOUNT, "size=64M"), 0);
  EXPECT_TRUE(eventually([&] { return sync_directory() == 0; }));
  ordered.get();
  EXPECT_EQ(stat("discards"), 0);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(difference(100 + i, read_file(names[i])), "");
  stop();  // before the state directory goes
}

TEST_F(SpillFaultsTest, CheckFindsAndDiscardsWhatIsDamaged) {
  const auto check = [&](const std::vector<std::string>& more) {
    std::vector<std::string> command = {"kvcachefs", "check", "p", "--spill", spill_file(), "--data"};
    command.insert(command.end(), more.begin(), more.end());
    return run(command);
  };
  start();
  fill_pool("e", 5, 300'000);
  ASSERT_EQ(error_name(sync_directory()), "ok");
  EXPECT_NE(check({}).exit_code, 0) << "a pool that serves is left alone";
  kill();
  EXPECT_EQ(check({}).exit_code, 0) << "after a kill";
  ASSERT_TRUE(damage(pattern(3, 300'000)));
  const Outcome found = check({});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_NE(found.out.find("e-3"), std::string::npos) << found.out;
  EXPECT_EQ(check({"--repair"}).exit_code, 0);
  EXPECT_EQ(check({}).exit_code, 0);
  start();
  EXPECT_EQ(survivors(in_pool("e", 5)), (std::vector<int>{0, 1, 2, 4}));
  EXPECT_EQ(check_whole(in_pool("e", 5)), 4);
  EXPECT_EQ(stat("checksum_errors"), 0);
  stop();
  EXPECT_EQ(check({}).exit_code, 0) << "after a stop";
}

}  // namespace
}  // namespace kvcachefs::test
