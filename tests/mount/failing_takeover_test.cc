// Takeovers in which a call fails or the disk is not there: what the successor cannot look at is not gone,
// and what it cannot make durable it does not say to be.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <string>

#include "tests/support/faults.h"
#include "tests/support/files.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

class FailingTakeoverTest : public FaultedTierTest {};

TEST_F(FailingTakeoverTest, WhatCannotBeLookedAtStaysOnTheDisk) {
  start({.more = "durability=writeback"});
  add("e", 10);
  EXPECT_TRUE(becomes("dirty_entries", 0));
  make_all_cold();
  for (const std::string fault : {"fail look at what is there 12", "fail look at what is there 23 7"}) {
    arm(fault);
    kill_server();
    EXPECT_TRUE(fired(fault));
    EXPECT_TRUE(becomes("disk_away", 0)) << fault;
    expect_whole();
    make_all_cold();
  }
  EXPECT_EQ(mount().log().find("has them no more"), std::string::npos);
  check_all();
}

// The process that finds the disk again ends for one that has it, each time as soon as the first time. A
// pause that grew from one to the next would be longer than an fsync waits in the sixth round.
TEST_F(FailingTakeoverTest, ADiskThatIsAwayAgainAndAgainIsLookedForAsSoon) {
  start();
  const std::string hidden = spill_file() + ".away";
  for (int round = 0; round < 7; ++round) {
    SCOPED_TRACE(round);
    add("e-" + std::to_string(round), 2);
    ASSERT_EQ(::rename(spill_file().c_str(), hidden.c_str()), 0);
    kill_server();
    EXPECT_EQ(stat("disk_away"), 1);
    ASSERT_EQ(::rename(hidden.c_str(), spill_file().c_str()), 0);
    ASSERT_EQ(error_name(sync_directory()), "ok");
    EXPECT_EQ(stat("disk_away"), 0);
  }
  check_all();
}

// A process that cannot look at all files makes way for another. It must not serve a part of them as the
// whole.
TEST_F(FailingTakeoverTest, WhatCannotBeLookedAtStaysInMemory) {
  start({.more = "durability=none"});
  make_directory(path("d"));
  add("e", 10);
  ASSERT_EQ(error_name(store(path("d/below"), pattern(3, 5000))), "ok");
  const File held(path("e-0"), O_RDONLY);
  for (const std::string fault :
       {"fail look at a file 12", "fail look at a file 23 7", "fail open inode 23", "fail open inode 12 1"}) {
    serve_for_a_moment();
    arm(fault);
    kill_server();
    EXPECT_TRUE(fired(fault));  // before others ask for files, which the walk then passes over
    expect_whole();
    EXPECT_EQ(difference(3, read_file(path("d/below"))), "") << fault;
    EXPECT_EQ(difference(0, read_file(path("e-0"))), "") << fault;
  }
  EXPECT_NE(mount().log().find("cannot be taken over"), std::string::npos);
  stop();
}

// An open that finds no descriptor costs that open, and not the next takeover.
TEST_F(FailingTakeoverTest, AnOpenWithoutADescriptorFailsAlone) {
  start({.more = "durability=writeback"});
  add("e", 4);
  EXPECT_TRUE(becomes("dirty_entries", 0));
  const File reader(path("e-1"),
                    O_RDONLY);  // the kernel has the file: the open below needs no other descriptor of it
  rlimit before{};
  ASSERT_EQ(::prlimit(mount().serving_pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  const rlimit none{3, before.rlim_max};
  ASSERT_EQ(::prlimit(mount().serving_pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  EXPECT_EQ(error_name(error_of(::open(path("e-1").c_str(), O_WRONLY | O_CLOEXEC))), "EMFILE");
  EXPECT_EQ(error_name(error_of(::truncate(path("e-2").c_str(), 10))), "EMFILE");
  ASSERT_EQ(::prlimit(mount().serving_pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  replace_server();
  expect_whole();
  check_all();
}

TEST_F(FailingTakeoverTest, WithSyncAndWithoutTheDiskARenameIsAnswered) {
  start({.more = "durability=sync"});
  ASSERT_EQ(error_name(store(path("new"), pattern(7, 100'000))), "ok");
  const std::string hidden = spill_file() + ".away";
  ASSERT_EQ(::rename(spill_file().c_str(), hidden.c_str()), 0);
  replace_server();
  const pid_t serving = mount().serving_pid();
  // The name is there, and it is not durable.
  EXPECT_EQ(error_name(error_of(::rename(path("new").c_str(), path("newer").c_str()))), "EINTR");
  {
    const File synced(path("synced"), O_WRONLY | O_CREAT | O_SYNC);
    EXPECT_EQ(::write(synced.fd(), "x", 1), -1);
    EXPECT_EQ(error_name(errno), "EIO");
  }
  EXPECT_EQ(mount().serving_pid(), serving);
  ASSERT_EQ(::rename(hidden.c_str(), spill_file().c_str()), 0);
  EXPECT_TRUE(becomes("disk_away", 0));
  EXPECT_EQ(difference(7, read_file(path("newer"))), "");
}

}  // namespace
}  // namespace kvcachefs::test
