// A cache gives way when its host, or the cgroup of its daemon, runs short of memory, and a client is not
// charged for what it stores.
#include <fcntl.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/freezable_disk.h"
#include "tests/support/memory_cgroup.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr uint64_t kPoolMiB = 200;
constexpr int kEntries = 180;  // of 1 MiB each: what fits below the watermarks

class MemoryPressureTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    // Not every container gives its root a memory cgroup to make others in.
    if (const std::string lacking = MemoryCgroup::lacking(); !lacking.empty()) GTEST_SKIP() << lacking;
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
    if (mount_) mount_->stop();
  }
  // The daemon is in a cgroup of its own; this process is not.
  void start(uint64_t cgroup_mib, const std::string& options, const std::string& more = "",
             const std::vector<std::string>& other_pools = {}) {
    cgroup_ = std::make_unique<MemoryCgroup>(cgroup_mib * kMiB);
    ASSERT_TRUE(cgroup_->add(0));
    const std::string size = std::to_string(kPoolMiB) + "M";
    MountOptions mount = {.pools = {"p:size=" + size + ",entry_size=1M" + more}};
    mount.options = {options};
    mount.pools.insert(mount.pools.end(), other_pools.begin(), other_pools.end());
    try {
      mount_ = std::make_unique<Mount>(std::move(mount));
    } catch (const MountError& error) {
      refusal_ = error.what();
    }
    ASSERT_TRUE(cgroup_->leave());
  }
  void fill() {
    for (int i = 0; i < kEntries; ++i)
      ASSERT_EQ(error_name(store(path(i), pattern(static_cast<uint64_t>(i), kMiB))), "ok") << i;
    ASSERT_GE(stat("used_bytes"), kEntries * static_cast<int64_t>(kMiB));
  }
  std::string path(int i) const { return mount_->path() + "/e" + std::to_string(i); }
  int64_t stat(std::string_view name) const { return mount_->stat_value(name); }
  int64_t used_mib() const { return stat("used_bytes") >> 20; }
  // How many are there; each of them whole.
  int whole_entries() const {
    int whole = 0;
    for (int i = 0; i < kEntries; ++i) {
      std::string content;
      if (load(path(i), &content) == ENOENT) continue;
      EXPECT_EQ(difference(static_cast<uint64_t>(i), content), "") << i;
      ++whole;
    }
    return whole;
  }

  std::unique_ptr<MemoryCgroup> cgroup_;
  std::unique_ptr<Mount> mount_;
  std::string refusal_;
};

TEST_F(MemoryPressureTest, NobodyIsKilledWhileTheCacheCouldGiveWay) {
  start(400, "memory_reserve=100M");
  fill();
  {
    MemoryTaker taker(*cgroup_, 200 * kMiB);
    EXPECT_TRUE(taker.has_all());
    EXPECT_TRUE(eventually([&] { return used_mib() <= 110; })) << used_mib();
    EXPECT_GE(used_mib(), 50) << "no more than what lacked, or about that";
    EXPECT_LT(stat("limit_bytes"), stat("size_bytes"));
    EXPECT_GT(stat("gave_way_bytes"), 0);
    EXPECT_EQ(whole_entries() >= 40, true);
    EXPECT_NE(mount_->log().find("the pools give way"), std::string::npos);
    // What is stored now replaces what was there.
    for (int i = 0; i < 100; ++i) ASSERT_EQ(error_name(store(path(i), pattern(i, kMiB))), "ok") << i;
    EXPECT_LE(used_mib(), 130);
  }
  EXPECT_TRUE(eventually([&] { return stat("limit_bytes") == stat("size_bytes"); }));
  EXPECT_TRUE(eventually(
      [&] { return mount_->log().find("the pools may have their sizes again") != std::string::npos; }));
  fill();
  EXPECT_EQ(whole_entries(), kEntries);
}

TEST_F(MemoryPressureTest, APoolKeepsItsFloor) {
  start(600, "memory_reserve=100M,shrink_floor=50%");
  fill();
  for (const uint64_t limit_mib : {250u, 220u, 200u}) {
    ASSERT_TRUE(cgroup_->set_limit(limit_mib * kMiB)) << limit_mib;
    const int64_t kept_mib = std::max<int64_t>(static_cast<int64_t>(limit_mib) - 100, 100);
    EXPECT_TRUE(eventually([&] { return used_mib() <= kept_mib + 5; })) << limit_mib << ": " << used_mib();
  }
  EXPECT_GE(used_mib(), 85);
  EXPECT_GE(whole_entries(), 85);
  EXPECT_NE(mount_->log().find("below shrink_floor, pinned or in use"), std::string::npos);
}

// Whatever its watermarks and entries are, and however slowly another takes its memory.
TEST_F(MemoryPressureTest, APoolGivesWhatLacksAndNoMore) {
  start(600, "memory_reserve=100M,shrink_floor=50%", ",watermarks=1:100");
  fill();
  int64_t lacked_mib = 0;
  for (int step = 0; step < 8; ++step, lacked_mib += 2) {
    ASSERT_TRUE(cgroup_->set_limit(cgroup_->used_bytes() + 98 * kMiB));
    EXPECT_TRUE(eventually([&] { return used_mib() <= kEntries - lacked_mib - 1; })) << step;
  }
  EXPECT_GE(used_mib(), kEntries - lacked_mib - 16);
  EXPECT_LE(stat("gave_way_bytes"), static_cast<int64_t>((lacked_mib + 16) * kMiB));
}

TEST_F(MemoryPressureTest, APoolThatCannotGiveHoldsUpNoOther) {
  KVCACHEFS_SKIP_IF(LoopDevice::available() ? std::string() : std::string("loop devices"));
  const DiskDirectory disk;
  FreezableDisk slow(disk, 256 * kMiB);
  start(700, "memory_reserve=100M",
        ",spill=" + slow.path() + "/spill,spill_size=200M,catalog=" + (disk / "catalog") +
            ",durability=writeback",
        {"q:size=200M,entry_size=1M"});
  slow.freeze();
  fill();
  for (int i = 0; i < kEntries; ++i)
    ASSERT_EQ(error_name(store(mount_->path("q") + "/e" + std::to_string(i), pattern(i, kMiB))), "ok") << i;
  ASSERT_TRUE(cgroup_->set_limit(cgroup_->used_bytes() + 20 * kMiB));
  EXPECT_TRUE(eventually([&] { return mount_->stat_value("used_bytes", "q") <= int64_t{105} << 20; }))
      << mount_->stat_value("used_bytes", "q");
  EXPECT_GE(used_mib(), kEntries);
  slow.thaw();
  EXPECT_EQ(whole_entries(), kEntries);
  mount_->stop();
  mount_.reset();
}

TEST_F(MemoryPressureTest, APoolCanAlwaysBeMadeSmaller) {
  start(600, "memory_reserve=100M", "", {"q:size=100M"});
  ASSERT_TRUE(cgroup_->set_limit(250 * kMiB));
  const pid_t serving = mount_->serving_pid();
  mount_->kill_server(true, std::chrono::milliseconds(0));
  ASSERT_TRUE(eventually([&] { return mount_->serving_pid() > 0 && mount_->serving_pid() != serving; }));
  EXPECT_EQ(error_name(write_once(mount_->place_to_write("size"), "210M\n")), "EINVAL");
  EXPECT_EQ(error_name(write_once(mount_->place_to_write("size"), "180M\n")), "ok");
  EXPECT_EQ(error_name(write_once(mount_->place_to_write("size", "q"), "64M\n")), "ok");
}

TEST_F(MemoryPressureTest, WhatIsInUseOrPinnedStays) {
  start(600, "memory_reserve=100M,shrink_floor=0%");
  fill();
  std::vector<File> held;
  for (int i = 0; i < 40; ++i) held.emplace_back(path(i), O_RDONLY);
  for (int i = 40; i < 80; ++i) ASSERT_EQ(set_xattr(path(i), "user.kvcachefs.pinned", "1"), 0) << i;
  ASSERT_TRUE(cgroup_->set_limit(cgroup_->used_bytes() + 50 * kMiB));
  EXPECT_TRUE(eventually([&] { return used_mib() <= 135; })) << used_mib();
  ASSERT_TRUE(cgroup_->set_limit(cgroup_->used_bytes() + 60 * kMiB));
  EXPECT_TRUE(eventually([&] { return used_mib() <= 95; })) << used_mib();
  for (int i = 0; i < 80; ++i) {
    std::string content;
    EXPECT_EQ(error_name(load(path(i), &content)), "ok") << i;
    EXPECT_EQ(difference(static_cast<uint64_t>(i), content), "") << i;
  }
}

TEST_F(MemoryPressureTest, WithADiskNothingIsLost) {
  const DiskDirectory disk;
  start(600, "memory_reserve=100M",
        ",spill=" + (disk / "spill") + ",spill_size=1G,catalog=" + (disk / "catalog") +
            ",durability=writeback");
  fill();
  ASSERT_TRUE(cgroup_->set_limit(cgroup_->used_bytes() + 50 * kMiB));
  EXPECT_TRUE(eventually([&] { return used_mib() <= 140; })) << used_mib();
  EXPECT_EQ(whole_entries(), kEntries);
  EXPECT_EQ(stat("discards"), 0);
}

TEST_F(MemoryPressureTest, OffOnRequest) {
  start(400, "memory_reserve=0");
  fill();
  MemoryTaker taker(*cgroup_, 300 * kMiB);
  EXPECT_FALSE(taker.has_all());
  EXPECT_EQ(stat("limit_bytes"), stat("size_bytes"));
  EXPECT_EQ(whole_entries(), kEntries);
}

TEST_F(MemoryPressureTest, APoolBeyondTheCgroupIsRefused) {
  start(150, "memory_reserve=0");
  EXPECT_NE(refusal_.find("size 200M is beyond the memory: 150M of 150M are left"), std::string::npos)
      << refusal_;
}

TEST_F(MemoryPressureTest, TheReserveIsRefusedToPools) {
  start(400, "memory_reserve=250M");
  EXPECT_NE(refusal_.find("without the memory_reserve of 250M"), std::string::npos) << refusal_;
  mount_.reset();
  start(400, "memory_reserve=50%");
  ASSERT_NE(mount_, nullptr) << refusal_;
  EXPECT_EQ(error_name(error_of(::mkdir((mount_->root() + "/more").c_str(), 0755))), "ENOSPC");
  write_file(mount_->place_to_write("size"), "100M\n");
  EXPECT_EQ(error_name(write_once(mount_->place_to_write("size"), "201M\n")), "EINVAL");
}

// An entry of a client in a container whose memory is less than the entry.
TEST(StoringClient, IsNotChargedForItsEntry) {
  KVCACHEFS_NEED_DAEMON();
  // Not every container gives its root a memory cgroup to make others in.
  if (const std::string lacking = MemoryCgroup::lacking(); !lacking.empty()) GTEST_SKIP() << lacking;
  Mount mount({.pools = {"p:size=2G"}});
  MemoryCgroup container(64 * kMiB);
  const std::string path = mount.path() + "/entry";
  for (int round = 0; round < 3; ++round) {
    EXPECT_EQ(in_child([&] {
                if (!container.add(0)) return 1;
                const std::string piece = pattern(1, 4 * kMiB);
                const File file(path, O_WRONLY | O_CREAT | O_TRUNC);
                for (int i = 0; i < 50; ++i)
                  if (::write(file.fd(), piece.data(), piece.size()) != static_cast<ssize_t>(piece.size()))
                    return 2;
                return 0;
              }),
              0)
        << round;
    struct ::stat status {};
    EXPECT_EQ(::stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_size, 200 * static_cast<off_t>(kMiB));
    EXPECT_LE(container.used_bytes(), 32 * kMiB);
  }
  mount.stop();
}

}  // namespace
}  // namespace kvcachefs::test
