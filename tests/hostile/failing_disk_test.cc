// A disk that answers with errors for a while, as during a reset of its controller. All entries on it, and
// all that wait to be written to it, have to be there when it works again.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {
namespace {

constexpr int kEntries = 24;

class FailingDiskTest : public DiskTierTest {
 protected:
  FailingDiskTest() { ::setenv("KVCACHEFS_FAULT_FILE", fault_file().c_str(), 1); }
  ~FailingDiskTest() override { ::unsetenv("KVCACHEFS_FAULT_FILE"); }

  std::string fault_file() const { return disk() / "fault"; }
  // fail() makes all disk requests of this kind fail until mend().
  void fail(const std::string& what, int code) {
    const std::string line = "failing disk " + what + " " + std::to_string(code) + "\n";
    write_file(fault_file() + ".new", line);  // so that no thread sees half a line
    ASSERT_EQ(::rename((fault_file() + ".new").c_str(), fault_file().c_str()), 0);
  }
  void mend() { ASSERT_EQ(::unlink(fault_file().c_str()), 0); }

  void scrub() {
    set("scrub", "start 1G");
    ASSERT_TRUE(eventually([&] { return progress()["state"] != "running"; }, std::chrono::seconds(60)));
  }
  std::map<std::string, std::string> progress() { return parse_stats(read_file(mount().control("scrub"))); }
  // The number of lines in the daemon's log that contain `what`.
  size_t lines_about(std::string_view what) {
    const std::string log = mount().log();
    size_t count = 0;
    for (size_t at = log.find(what); at != std::string::npos; at = log.find(what, at + 1)) ++count;
    return count;
  }
  std::vector<std::string> names(const std::string& group, int count) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(path(group + "-" + std::to_string(i)));
    return all;
  }
};

TEST_F(FailingDiskTest, AScrubMeanwhileCostsNothing) {
  start({.size = "64M"});
  fill_pool("e", kEntries, 300'000);
  ASSERT_EQ(sync_directory(), 0);
  make_all_cold();
  fail("read", EIO);
  scrub();
  auto seen = progress();
  EXPECT_EQ(seen["state"], "stopped_by_errors");
  EXPECT_EQ(seen["damaged"], "0");
  EXPECT_GE(std::stoi(seen["unreadable"]), 2);
  EXPECT_LE(std::stoi(seen["entries_done"]), kEntries / 2) << "it goes on although nothing can be read";
  EXPECT_EQ(stat("entries"), kEntries);
  EXPECT_NE(run({"kvcachefs", "--mount", mount().root(), "scrub", "p"}).exit_code, 0);
  EXPECT_LE(lines_about("read error 5"), 1u);
  mend();
  scrub();
  EXPECT_EQ(progress()["state"], "idle");
  EXPECT_EQ(progress()["damaged"], "0");
  EXPECT_EQ(check_whole(names("e", kEntries)), kEntries);
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_EQ(stat("checksum_errors"), 0);
  kill();
  start({.size = "64M"});
  EXPECT_EQ(check_whole(names("e", kEntries)), kEntries);
}

// The disk's errno does not matter: the client gets EIO.
TEST_F(FailingDiskTest, OpensMeanwhileFailAndCostNothing) {
  start({.size = "64M"});
  fill_pool("e", kEntries, 300'000);
  ASSERT_EQ(sync_directory(), 0);
  make_all_cold();
  for (const int code : {EIO, ETIMEDOUT, EREMOTEIO, ENODATA, ENODEV}) {
    fail("read", code);
    for (const std::string& name : names("e", kEntries)) {
      std::string content;
      EXPECT_EQ(error_name(load(name, &content)), "EIO") << name;
    }
    EXPECT_EQ(error_name(error_of(::truncate(path("e-1").c_str(), 1000))), "EIO");
    struct ::stat status {};
    EXPECT_EQ(::stat(path("e-1").c_str(), &status), 0);
    EXPECT_EQ(status.st_size, 300'000);
  }
  EXPECT_LE(lines_about("read error"), 1u);
  // A store of new content needs nothing of the old one.
  EXPECT_EQ(error_name(store(path("e-2"), pattern(2, 1000))), "ok");
  EXPECT_EQ(error_name(error_of(::unlink(path("e-3").c_str()))), "ok");
  EXPECT_EQ(stat("discards"), 0);
  mend();
  EXPECT_EQ(check_whole(names("e", kEntries)), kEntries - 1);
  ASSERT_EQ(sync_directory(), 0);
  kill();
  start({.size = "64M"});
  EXPECT_EQ(check_whole(names("e", kEntries)), kEntries - 1);
}

TEST_F(FailingDiskTest, AReaderServedFromTheDiskGoesOnAfterwards) {
  start({.size = "32M", .more = "pinned_max=100%"});
  fill_pool("e", 4, 4 * kMiB);
  make_all_cold();
  const auto pins = fill_pool("pin", 30);
  std::vector<File> busy;
  for (const std::string& name : pins) busy.emplace_back(name, O_RDONLY);
  const File reader(path("e-0"), O_RDONLY);
  ASSERT_EQ(stat("served_from_disk"), 1) << "there is memory for it";
  EXPECT_EQ(difference(0, read_at(reader.fd(), 0, 4096)), "");
  fail("read", ETIMEDOUT);
  EXPECT_EQ(read_at(reader.fd(), 0, 4096), "EIO");
  mend();
  EXPECT_EQ(difference(0, read_at(reader.fd(), 0, 4096)), "");
  EXPECT_EQ(stat("discards"), 0);
}

TEST_F(FailingDiskTest, CheckKeepsWhatCannotBeRead) {
  start();
  fill_pool("e", 5, 300'000);
  ASSERT_EQ(sync_directory(), 0);
  stop();
  fail("read", EIO);
  const Outcome found = run({"kvcachefs", "check", "p", "--spill", spill_file(), "--data", "--repair"});
  EXPECT_EQ(found.exit_code, 1);
  EXPECT_NE(found.out.find("e-3"), std::string::npos) << found.out;
  mend();
  EXPECT_EQ(run({"kvcachefs", "check", "p", "--spill", spill_file(), "--data"}).exit_code, 0);
  start();
  EXPECT_EQ(check_whole(names("e", 5)), 5);
}

// An entry that durability=writeback promises to keep must not be lost; a writer that finds no room gets an
// error.
TEST_F(FailingDiskTest, WhatCannotBeWrittenIsKept) {
  start({.size = "32M", .spill_size = "256M", .more = "durability=writeback"});
  fail("write", EIO);
  // The pool is full long before the last store; then a create waits for room, thirty seconds at most.
  constexpr int kStored = 60;
  auto storing = std::async(std::launch::async, [&] {
    int stored = 0;
    for (int i = 0; i < kStored; ++i)
      stored += store(path("e-" + std::to_string(i)), pattern(i, kMiB)) == 0 ? 1 : 0;
    return stored;
  });
  EXPECT_TRUE(rises_to("dirty_bytes", static_cast<int64_t>(24 * kMiB)));
  const int64_t errors = stat("spill_errors");
  EXPECT_TRUE(rises_to("spill_errors", errors + 3)) << "it is not tried again";
  EXPECT_EQ(storing.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_EQ(stat("spills"), 0);
  // The test syncs a file, not the directory, which the waiting create has locked.
  EXPECT_EQ(error_name(error_of(::fsync(File(path("e-0"), O_RDONLY).fd()))), "EIO");
  EXPECT_EQ(lines_about("write error"), 1u);
  mend();
  const int stored = storing.get();
  EXPECT_EQ(stored, kStored);
  EXPECT_TRUE(becomes("dirty_entries", 0));
  EXPECT_EQ(stat("spills"), stored);
  EXPECT_EQ(error_name(sync_directory()), "ok");
  fill_pool("more", 60);
  EXPECT_EQ(stat("discards"), 0);
  kill();
  start({.size = "32M", .spill_size = "256M", .more = "durability=writeback"});
  EXPECT_EQ(check_whole(names("e", stored)), stored);
}

TEST_F(FailingDiskTest, WithoutDurabilityADiskThatRefusesStopsNobody) {
  start({.size = "32M", .spill_size = "256M", .more = "durability=none"});
  fail("write", EIO);
  const auto stored = fill_pool("e", 120);
  EXPECT_GT(stat("discards"), 0);
  const size_t left = survivors(stored).size();
  EXPECT_GE(left, 12u) << "it gives up more than it has to";
  mend();
  fill_pool("f", 120);
  EXPECT_TRUE(rises_to("spills", 1));
}

// A write to one place on the disk fails for good: other entries get their turn, and the entry gets another
// place.
TEST_F(FailingDiskTest, OneErrorHoldsUpNobody) {
  start({.more = "durability=writeback"});
  write_file(fault_file(), "fail disk write 5\n");
  fill_pool("e", 12, 300'000);
  EXPECT_TRUE(becomes("dirty_entries", 0));
  EXPECT_EQ(stat("spills"), 12);
  EXPECT_EQ(stat("spill_errors"), 1);
  make_all_cold();
  EXPECT_EQ(check_whole(names("e", 12)), 12);
}

// After a failed flush nothing more gets to the disk until the pool starts again; dirty entries are kept.
TEST_F(FailingDiskTest, AFlushThatFailsCostsNoEntry) {
  start({.size = "32M", .more = "durability=writeback"});
  fill_pool("before", 4);
  ASSERT_EQ(sync_directory(), 0);
  write_file(fault_file(), "fail disk flush 5\n");
  fill_pool("e", 4);
  EXPECT_TRUE(becomes("disk_failed", 1));
  int stored = 0;
  while (stored < 60 && store(path("f-" + std::to_string(stored)), pattern(stored, kMiB)) == 0) ++stored;
  EXPECT_LT(stored, 60) << "there is no room for so many";
  EXPECT_EQ(stat("discards"), 0);
  EXPECT_EQ(check_whole(names("before", 4)), 4);
  EXPECT_EQ(check_whole(names("e", 4)), 4);
  EXPECT_EQ(check_whole(names("f", stored)), stored);
  // The next process takes over the content of the memory, and the disk again.
  const pid_t serving = mount().serving_pid();
  ASSERT_EQ(::kill(serving, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return stat("disk_failed") == 0; }, std::chrono::seconds(60)));
  EXPECT_TRUE(becomes("dirty_entries", 0));
  EXPECT_EQ(check_whole(names("f", stored)), stored);
}

// A failed flush may have lost what was written before it, and the kernel tells that once. The memory has it,
// and so must keep it until another copy is durable: neither an eviction nor the next process takes the lost
// one for a copy.
TEST_F(FailingDiskTest, ACopyThatAFailedFlushHasLostIsNone) {
  start({.size = "32M", .more = "durability=writeback"});
  write_file(fault_file(), "fail disk flush 5\n");
  fill_pool("e", 4);
  EXPECT_TRUE(becomes("disk_failed", 1));
  int lost = 0;
  for (const std::string& name : names("e", 4)) lost += damage(read_file(name)) ? 1 : 0;
  EXPECT_GT(lost, 0);
  (void)write_once(mount().control("evict"), "100%");
  EXPECT_EQ(check_whole(names("e", 4)), 4);
  EXPECT_EQ(stat("cold_entries"), 0);
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return stat("disk_failed") == 0; }));
  for (const std::string& name : names("e", 4)) EXPECT_EQ(::fsync(File(name, O_RDONLY).fd()), 0);
  make_all_cold();
  EXPECT_EQ(check_whole(names("e", 4)), 4);
  EXPECT_EQ(stat("checksum_errors"), 0);
  stop_and_check();
}

}  // namespace
}  // namespace kvcachefs::test
