// Entries that only the disk has, while a process that takes over still walks its pools
// (tier/pool/disk_before_use.h).
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <future>
#include <string>
#include <vector>

#include "tests/support/in_part_test.h"

namespace kvcachefs::test {
namespace {

class ColdInPartTest : public ServedInPartTest {
 protected:
  void start_cold(const TierOptions& options = {}) {
    start(options);
    add("e", kEntries);
    make_all_cold();
  }
};

TEST_F(ColdInPartTest, WhatIsOnTheDiskIsRead) {
  start_cold();
  ASSERT_EQ(store(path("empty"), ""), 0);
  make_all_cold();
  const int64_t before = stat("served_from_disk");
  for (const char* place : {"walk begun", "adopted the tree", "claimed what the disk has"})
    while_it_walks(place, [&] {
      EXPECT_EQ(check_whole(names("e")), kEntries);
      EXPECT_EQ(read_file(path("empty")), "");
      const File file(path("e-3"), O_RDONLY);
      EXPECT_EQ(read_at(file.fd(), kMiB - 10, 100), pattern(3, kMiB).substr(kMiB - 10));
      EXPECT_EQ(read_at(file.fd(), 2 * kMiB, 100), "");
    });
  // The last process has counted its own.
  EXPECT_GE(stat("served_from_disk") - before, kEntries);
  EXPECT_TRUE(becomes("open_entries", 0));
  EXPECT_EQ(stat("cold_entries"), kEntries + 1);
  expect_whole();
  check_all();
}

// What is still open when the takeover has ended keeps its place on the disk.
TEST_F(ColdInPartTest, WhatStaysOpenIsNotOverwritten) {
  start_cold({.spill_size = "32M"});
  for (const char* place : {"walk begun", "adopted the tree", "claimed what the disk has", "all restored"}) {
    std::vector<File> open;
    while_it_walks(place, [&] {
      open.emplace_back(path("e-0"), O_RDONLY);
      open.emplace_back(path("e-0"), O_RDONLY);
      open.emplace_back(path("e-1"), O_RDONLY);
    });
    EXPECT_TRUE(becomes("open_entries", 2));
    ASSERT_EQ(::unlink(path("e-0").c_str()), 0);
    ASSERT_EQ(store(path("e-1"), pattern(100, kMiB)), 0);
    for (int round = 0; round < 3; ++round) {
      for (int i = 0; i < kEntries; ++i)
        EXPECT_EQ(store(path("other-" + std::to_string(i)), pattern(200 + round, kMiB)), 0);
      ASSERT_EQ(error_name(sync_directory()), "ok");
    }
    EXPECT_EQ(difference(0, read_at(open[0].fd(), 0, kMiB)), "");
    open.erase(open.begin());
    EXPECT_EQ(difference(0, read_at(open[0].fd(), 0, kMiB)), "");
    EXPECT_EQ(difference(1, read_at(open[1].fd(), 0, kMiB)), "");
    open.clear();
    EXPECT_TRUE(becomes("open_entries", 0));
    for (int i = 0; i < kEntries; ++i) ASSERT_EQ(::unlink(path("other-" + std::to_string(i)).c_str()), 0);
    add("e", 2);
    make_all_cold();
  }
  check_all();
}

TEST_F(ColdInPartTest, ADamagedOneIsNoMissBeforeTheEnd) {
  start_cold();
  ASSERT_TRUE(damage(pattern(1, kMiB)));
  while_it_walks("walk begun", [&] {
    EXPECT_EQ(error_name(error_of(::open(path("e-1").c_str(), O_RDONLY | O_CLOEXEC))), "EIO");
    EXPECT_EQ(difference(2, read_file(path("e-2"))), "");
  });
  EXPECT_EQ(stat("checksum_errors"), 1);
  EXPECT_EQ(error_name(error_of(::open(path("e-1").c_str(), O_RDONLY | O_CLOEXEC))), "ENOENT");
  EXPECT_EQ(stat("entries"), kEntries - 1);
  EXPECT_TRUE(becomes("open_entries", 0));
  stop_and_check();
}

// Also beside an open that has outlived a process, and was verified before.
TEST_F(ColdInPartTest, ADamagedOneIsNotServedBesideAnotherOpen) {
  start_cold();
  std::vector<File> open;
  while_it_walks("walk begun", [&] { open.emplace_back(path("e-1"), O_RDONLY); });
  ASSERT_TRUE(damage(pattern(1, kMiB)));
  while_it_walks("walk begun", [&] {
    for (int i = 0; i < 3; ++i)
      EXPECT_EQ(error_name(error_of(::open(path("e-1").c_str(), O_RDONLY | O_CLOEXEC))), "EIO");
  });
  open.clear();
  EXPECT_TRUE(becomes("open_entries", 0));
  stop();
}

TEST_F(ColdInPartTest, WhatHasNoNameIsOpenedAgain) {
  start_cold();
  std::vector<File> open;
  while_it_walks("walk begun", [&] { open.emplace_back(path("e-1"), O_RDONLY); });
  ASSERT_EQ(::unlink(path("e-1").c_str()), 0);
  const std::string again = "/proc/self/fd/" + std::to_string(open[0].fd());
  for (const char* place : {"walk begun", "claimed what the disk has", "all restored"})
    while_it_walks(place, [&] { EXPECT_EQ(difference(1, read_file(again)), ""); });
  EXPECT_EQ(difference(1, read_at(open[0].fd(), 0, kMiB)), "");
  open.clear();
  EXPECT_TRUE(becomes("open_entries", 0));
  EXPECT_EQ(stat("no_space_errors"), 0);
  stop_and_check();
}

TEST_F(ColdInPartTest, AnOpenThatFailsHoldsNoSpace) {
  start();
  const int64_t before = stat("spill_used_bytes");
  add("e", kEntries);
  make_all_cold();
  for (const char* place : {"walk begun", "claimed what the disk has", "all restored"})
    while_it_walks(place, [&] {
      arm("failing write down an open 24");
      for (const std::string& name : names("e"))
        EXPECT_EQ(error_name(error_of(::open(name.c_str(), O_RDONLY | O_CLOEXEC))), "EMFILE");
      EXPECT_EQ(::unlink(fault_file().c_str()), 0);
    });
  expect_whole();
  for (const std::string& name : names("e")) EXPECT_EQ(::unlink(name.c_str()), 0);
  ASSERT_EQ(error_name(sync_directory()), "ok");
  EXPECT_TRUE(becomes("spill_used_bytes", before));
  stop_and_check();
}

// An open that comes before the disk does waits for it.
TEST_F(ColdInPartTest, AnOpenWaitsForTheDisk) {
  start_cold();
  std::future<std::string> opened;
  while_it_walks("disks to come", [&] {
    opened = std::async(std::launch::async, [&] { return difference(1, read_file(path("e-1"))); });
    EXPECT_TRUE(exists(path("e-2")));
    EXPECT_TRUE(waits(opened));
    arm("pause walk begun");
    go_on();
    ASSERT_TRUE(eventually([&] { return exists(paused()); }));
    EXPECT_EQ(opened.get(), "");
  });
  EXPECT_TRUE(becomes("open_entries", 0));
  check_all();
}

// A disk that is not there yet when the successor looks for it may be when its walk has ended.
TEST_F(ColdInPartTest, TheDiskIsTriedAgainAfterTheWalk) {
  start_cold();
  const std::string hidden = spill_file() + ".away";
  std::future<std::string> opened;
  ASSERT_EQ(::rename(spill_file().c_str(), hidden.c_str()), 0);
  while_it_walks("walk begun", [&] {
    opened = std::async(std::launch::async, [&] { return difference(1, read_file(path("e-1"))); });
    EXPECT_TRUE(exists(path("e-2")));
    EXPECT_TRUE(waits(opened));
    ASSERT_EQ(::rename(hidden.c_str(), spill_file().c_str()), 0);
  });
  EXPECT_EQ(opened.get(), "");
  EXPECT_EQ(stat("disk_away"), 0);
  EXPECT_TRUE(becomes("open_entries", 0));
  check_all();
}

// The disk can be read, and the catalog cannot be made to agree with the files: the disk is away, and what is
// open of it can be read when it is back.
TEST_F(ColdInPartTest, TheDiskFailsAfterAnOpen) {
  start_cold();
  for (const std::string fault : {"fail look at what is there 12", "fail look at what is there 23 7"}) {
    SCOPED_TRACE(fault);
    std::vector<File> open;
    while_it_walks("adopted the tree", [&] {
      open.emplace_back(path("e-3"), O_RDONLY);
      EXPECT_EQ(difference(3, read_at(open[0].fd(), 0, kMiB)), "");
      arm(fault);
    });
    EXPECT_TRUE(fired(fault));
    EXPECT_TRUE(becomes("disk_away", 0));
    EXPECT_EQ(difference(3, read_at(open[0].fd(), 0, kMiB)), "");
    open.clear();
    EXPECT_TRUE(becomes("open_entries", 0));
    expect_whole();
    make_all_cold();
  }
  check_all();
}

TEST_F(ColdInPartTest, ADeathMeanwhileIsADeathAsAnyOther) {
  start_cold();
  for (const char* place : {"verification begun", "open written down", "adopted the tree"}) {
    SCOPED_TRACE(place);
    std::vector<File> meanwhile;
    std::future<std::string> opened;
    while_it_walks("walk begun", [&] {
      meanwhile.emplace_back(path("e-3"), O_RDONLY);
      arm(place);
      opened = std::async(std::launch::async, [&] { return difference(1, read_file(path("e-1"))); });
      if (std::string_view(place).starts_with("adopted")) {
        EXPECT_EQ(opened.get(), "");
        go_on();
      }
      EXPECT_TRUE(fired(place));
      go_on();
    });
    if (opened.valid()) {
      EXPECT_EQ(opened.get(), "");
    }
    EXPECT_EQ(difference(3, read_at(meanwhile[0].fd(), 0, kMiB)), "");
    EXPECT_TRUE(becomes("open_entries", 1));
    meanwhile.clear();
    EXPECT_TRUE(becomes("open_entries", 0));
    serve_for_a_moment();
    make_all_cold();
  }
  check_all();
}

}  // namespace
}  // namespace kvcachefs::test
