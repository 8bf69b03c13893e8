// A pool's disk is read and checked while the pool serves: exactly the damaged entries are found and dealt
// with.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr int kEntries = 24;
constexpr size_t kEntryBytes = 300'000;

class ScrubTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    MountOptions options;
    options.pools = {"p:size=64M,durability=writeback,spill_size=64M,spill=" + spill()};
    mount_ = std::make_unique<Mount>(options);
    for (int entry = 0; entry < kEntries; ++entry)
      ASSERT_EQ(store(path(entry), pattern(entry, kEntryBytes)), 0);
    ASSERT_TRUE(eventually([&] { return mount_->stat_value("clean_entries") == kEntries; },
                           std::chrono::seconds(60)));
  }
  void TearDown() override {
    if (mount_ && HasFailure()) report_daemon_log(*mount_);
    if (mount_) mount_->stop();
  }

  std::string spill() const { return disk_ / "spill"; }
  std::string path(int entry) const { return mount_->path() + "/e" + std::to_string(entry); }

  void make_cold() {
    ASSERT_EQ(write_once(mount_->control("evict"), "100%"), 0);
    ASSERT_TRUE(eventually([&] { return mount_->stat_value("cold_entries") == kEntries; }));
  }

  // damage() flips a bit in the disk's copy of the entry.
  void damage(int entry) {
    const File file(spill(), O_RDWR | O_CLOEXEC);
    const std::string sought = pattern(entry, kEntryBytes).substr(0, 4096);
    constexpr off_t kUnit = 64 << 10;
    for (off_t at = kUnit;; at += kUnit) {
      std::string found(sought.size(), '\0');
      ASSERT_EQ(::pread(file.fd(), found.data(), found.size(), at), ssize_t(found.size()))
          << "not on the disk";
      if (found != sought) continue;
      const char wrong = static_cast<char>(found[1234] ^ 4);
      ASSERT_EQ(::pwrite(file.fd(), &wrong, 1, at + 1234), 1);
      ASSERT_EQ(::fsync(file.fd()), 0);
      return;
    }
  }

  uint64_t read_from_disk() const {
    const std::string io = read_file("/proc/" + std::to_string(mount_->server_pid()) + "/io");
    return std::stoull(io.substr(io.find("\nread_bytes: ") + 13));
  }
  std::map<std::string, std::string> progress() const {
    return parse_stats(read_file(mount_->control("scrub")));
  }
  void scrub() {
    ASSERT_EQ(write_once(mount_->administrators("scrub"), "start 1G"), 0);
    ASSERT_TRUE(eventually([&] { return progress()["state"] == "idle"; }, std::chrono::seconds(60)));
  }

  DiskDirectory disk_;
  std::unique_ptr<Mount> mount_;
};

TEST_F(ScrubTest, AWholeDiskHasNoDamage) {
  scrub();
  auto seen = progress();
  EXPECT_EQ(seen["entries_done"], std::to_string(kEntries));
  EXPECT_EQ(seen["entries_total"], std::to_string(kEntries));
  EXPECT_EQ(seen["bytes"], std::to_string(kEntries * kEntryBytes));
  EXPECT_EQ(seen["damaged"], "0");
  make_cold();
  scrub();
  EXPECT_EQ(progress()["damaged"], "0");
  EXPECT_EQ(mount_->stat_value("cold_entries"), kEntries) << "scrubbing is no promotion";
}

TEST_F(ScrubTest, ADamagedCopyOfWhatMemoryHasIsWrittenAgain) {
  damage(3);
  damage(11);
  scrub();
  EXPECT_EQ(progress()["damaged"], "2");
  EXPECT_EQ(mount_->stat_value("checksum_errors"), 2);
  ASSERT_TRUE(eventually([&] { return mount_->stat_value("clean_entries") == kEntries; }));
  scrub();
  EXPECT_EQ(progress()["damaged"], "0");
  make_cold();
  for (int entry = 0; entry < kEntries; ++entry)
    EXPECT_EQ(difference(entry, read_file(path(entry))), "") << entry;
}

TEST_F(ScrubTest, ADamagedCopyOfWhatIsBeingWrittenIsWrittenAgain) {
  damage(3);
  for (int entry = 0; entry < kEntries; ++entry) {
    if (entry == 3) continue;
    ASSERT_EQ(::unlink(path(entry).c_str()), 0);
  }
  const uint64_t before = read_from_disk();
  // The second piece of the entry has to wait for two seconds, so that the verdict meets a writer.
  ASSERT_EQ(write_once(mount_->control("scrub"), "start 128K"), 0);
  ASSERT_TRUE(eventually([&] { return read_from_disk() > before; }));
  {
    const File file(path(3), O_WRONLY);
    ASSERT_EQ(progress()["entries_done"], "0");
    ASSERT_TRUE(eventually([&] { return progress()["state"] == "idle"; }, std::chrono::seconds(60)));
    EXPECT_EQ(progress()["damaged"], "1");
    const std::string same = pattern(3, kEntryBytes);
    ASSERT_EQ(::pwrite(file.fd(), same.data(), same.size(), 0), ssize_t(same.size()));
  }
  ASSERT_TRUE(eventually([&] { return mount_->stat_value("clean_entries") == 1; }));
  scrub();
  EXPECT_EQ(progress()["damaged"], "0");
  ASSERT_EQ(write_once(mount_->control("evict"), "100%"), 0);
  ASSERT_TRUE(eventually([&] { return mount_->stat_value("cold_entries") == 1; }));
  EXPECT_EQ(difference(3, read_file(path(3))), "");
}

TEST_F(ScrubTest, ADamagedColdEntryIsDiscarded) {
  make_cold();
  damage(0);
  damage(7);
  damage(23);
  scrub();
  auto seen = progress();
  EXPECT_EQ(seen["damaged"], "3");
  EXPECT_EQ(seen["entries_done"], std::to_string(kEntries));
  EXPECT_EQ(mount_->stat_value("checksum_errors"), 3);
  EXPECT_EQ(mount_->stat_value("damaged_discards"), 3);
  EXPECT_EQ(mount_->stat_value("disk_discards"), 0) << "the disk is not full";
  for (int entry = 0; entry < kEntries; ++entry) {
    std::string content;
    const bool damaged = entry == 0 || entry == 7 || entry == 23;
    ASSERT_EQ(load(path(entry), &content), damaged ? ENOENT : 0) << entry;
    if (!damaged) {
      EXPECT_EQ(difference(entry, content), "") << entry;
    }
  }
}

TEST_F(ScrubTest, IsHeldToItsRateAndCanBeStopped) {
  ASSERT_EQ(write_once(mount_->control("scrub"), "start 1M"), 0);
  EXPECT_EQ(progress()["state"], "running");
  EXPECT_EQ(write_once(mount_->control("scrub"), "start 1M"), EBUSY);
  const auto begun = std::chrono::steady_clock::now();
  ASSERT_TRUE(eventually([&] { return std::stoll(progress()["bytes"]) >= 2'000'000; }));
  // The rate limit lets the first piece and one more pass at once.
  EXPECT_GE(std::chrono::steady_clock::now() - begun, std::chrono::milliseconds(1000));
  ASSERT_EQ(write_once(mount_->control("scrub"), "stop"), 0);
  EXPECT_EQ(progress()["state"], "idle");
  const std::string done = progress()["entries_done"];
  scrub();
  EXPECT_NE(done, std::to_string(kEntries));
  EXPECT_EQ(progress()["entries_done"], std::to_string(kEntries));
}

TEST_F(ScrubTest, WhatChangesMeanwhileIsNotDamaged) {
  make_cold();
  for (int round = 0; round < 8; ++round) {
    ASSERT_EQ(write_once(mount_->administrators("scrub"), "start 1G"), 0);
    for (int entry = 0; entry < kEntries; ++entry) {
      if (entry % 3 == 0) {
        ASSERT_EQ(store(path(entry), pattern(entry, kEntryBytes)), 0);
      } else if (entry % 3 == 1) {
        ASSERT_EQ(difference(entry, read_file(path(entry))), "");
      }
    }
    ASSERT_TRUE(eventually([&] { return progress()["state"] == "idle"; }, std::chrono::seconds(60)));
    EXPECT_EQ(progress()["damaged"], "0");
  }
  EXPECT_EQ(mount_->stat_value("checksum_errors"), 0);
}

}  // namespace
}  // namespace kvcachefs::test
