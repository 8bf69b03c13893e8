// What a start serves while it still brings back what a pool's disk has.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <future>
#include <set>
#include <string>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr int kFiles = 300;
constexpr int kThere = 270;  // where the restore is held, after its first mark
constexpr size_t kBytes = 5000;
constexpr auto npos = std::string::npos;

// The pool has the directory d and in it kFiles files, which come back in the order of their numbers.
class StartingTest : public FaultedTierTest {
 protected:
  void SetUp() override {
    FaultedTierTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    start();
    make_directory(path("d"), 0755);
    for (int i = 0; i < kFiles; ++i) ASSERT_EQ(store(name(i), content(i)), 0) << i;
    start_held();
  }
  void TearDown() override {
    go_on();
    FaultedTierTest::TearDown();
  }
  void start_held() {
    stop();
    arm("hold restored " + std::to_string(kThere + 1));  // after the directory
    start({.waits_for_names = false});
    ASSERT_TRUE(eventually([&] { return exists(paused()); }));
  }
  void go_on() { (void)::unlink(paused().c_str()); }
  void until_all_are_back() { ASSERT_TRUE(becomes("disk_restoring", 0)); }
  std::string paused() const { return fault_file() + ".paused"; }
  std::string name(int i) { return path("d/" + std::to_string(i)); }
  static std::string content(int i) { return pattern(static_cast<uint64_t>(i), kBytes); }
  bool is_whole(int i) {
    return exists(name(i)) && difference(static_cast<uint64_t>(i), read_file(name(i))).empty();
  }
  // The files that are listed and those that are not, in no order that a test may rely on. A look for a file
  // by its name would bring it back.
  std::vector<int> there(bool are_there) {
    std::set<std::string> listed;
    for (const auto& entry : std::filesystem::directory_iterator(path("d")))
      listed.insert(entry.path().filename());
    std::vector<int> result;
    for (int i = 0; i < kFiles; ++i)
      if (listed.contains(std::to_string(i)) == are_there) result.push_back(i);
    return result;
  }
  void expect_all_but(std::vector<int> missing) {
    std::ranges::sort(missing);
    EXPECT_EQ(there(false), missing);
    for (int i = 0; i < kFiles; i += 20) EXPECT_TRUE(is_whole(i) || !exists(name(i))) << i;
  }
};

TEST_F(StartingTest, WhatIsLookedForIsBroughtBackAtOnce) {
  EXPECT_EQ(stat("disk_restoring"), 1);
  const auto back = there(true), missing = there(false);
  ASSERT_EQ(back.size(), static_cast<size_t>(kThere));
  EXPECT_TRUE(is_whole(back.front()));
  EXPECT_TRUE(is_whole(missing.front()));
  EXPECT_TRUE(is_whole(missing.back()));
  EXPECT_EQ(there(true).size(), back.size() + 2);
  EXPECT_EQ(error_of(::open(path("d/none").c_str(), O_RDONLY)), ENOENT);
  EXPECT_EQ(error_of(::open(name(missing[1]).c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644)), EEXIST);
  EXPECT_EQ(error_of(::mkdir(name(missing[2]).c_str(), 0755)), EEXIST);
  EXPECT_EQ(error_of(::symlink("x", name(missing[3]).c_str())), EEXIST);
  EXPECT_EQ(error_of(::link(name(back.front()).c_str(), name(missing[4]).c_str())), EEXIST);
  EXPECT_EQ(error_of(::rmdir(name(missing[5]).c_str())), ENOTDIR);
  ASSERT_EQ(store(path("new"), "new"), 0);
  make_directory(path("e"), 0755);
  ASSERT_EQ(store(path("e/new"), "new"), 0);
  go_on();
  until_all_are_back();
  expect_all_but({});
  EXPECT_EQ(read_file(path("e/new")), "new");
  start();
  expect_all_but({});
  EXPECT_EQ(read_file(path("new")), "new");
  stop_and_check();
}

TEST_F(StartingTest, ANameThatIsStoredMeanwhileIsTheNewerFile) {
  const auto back = there(true), missing = there(false);
  ASSERT_EQ(store(name(missing.front()), "newer"), 0);
  ASSERT_EQ(store(path("d/temporary"), "renamed"), 0);
  EXPECT_EQ(::rename(path("d/temporary").c_str(), name(missing.back()).c_str()), 0);
  EXPECT_EQ(::rename(name(missing[1]).c_str(), name(missing[2]).c_str()), 0);
  ASSERT_EQ(store(name(back.front()), "written over"), 0);
  go_on();
  until_all_are_back();
  for (int round = 0; round < 2; ++round) {
    EXPECT_EQ(read_file(name(missing.front())), "newer");
    EXPECT_EQ(read_file(name(missing.back())), "renamed");
    EXPECT_EQ(difference(static_cast<uint64_t>(missing[1]), read_file(name(missing[2]))), "");
    EXPECT_EQ(read_file(name(back.front())), "written over");
    EXPECT_EQ(there(false), std::vector<int>{missing[1]});
    start();
  }
  stop_and_check();
}

TEST_F(StartingTest, WhatIsRemovedMeanwhileStaysRemoved) {
  const auto back = there(true), missing = there(false);
  ASSERT_EQ(::unlink(name(missing.back()).c_str()), 0);
  ASSERT_EQ(::unlink(name(back.front()).c_str()), 0);
  EXPECT_EQ(::rename(name(back[1]).c_str(), path("moved").c_str()), 0);
  EXPECT_EQ(error_of(::rename(path("d").c_str(), path("moved-d").c_str())), EBUSY);
  go_on();
  until_all_are_back();
  for (int round = 0; round < 2; ++round) {
    expect_all_but({back.front(), back[1], missing.back()});
    EXPECT_TRUE(exists(path("moved")));
    start();
  }
  stop_and_check();
}

TEST_F(StartingTest, AfterADeathInTheMidstAllIsRight) {
  const auto back = there(true), missing = there(false);
  ASSERT_EQ(::unlink(name(back.front()).c_str()), 0);
  EXPECT_EQ(::rename(name(back[1]).c_str(), path("moved").c_str()), 0);
  ASSERT_EQ(store(name(missing.front()), "newer"), 0);
  ASSERT_EQ(store(path("new"), "new"), 0);
  ASSERT_EQ(::unlink(name(missing[1]).c_str()), 0);
  EXPECT_EQ(::rename(name(missing[2]).c_str(), path("moved late").c_str()), 0);
  ASSERT_EQ(store(path("replaces"), "replaces"), 0);
  EXPECT_EQ(::rename(path("replaces").c_str(), name(missing[3]).c_str()), 0);
  EXPECT_EQ(difference(static_cast<uint64_t>(back[2]), read_file(name(back[2]))), "");
  kill_server();
  go_on();
  until_all_are_back();
  for (int round = 0; round < 2; ++round) {
    expect_all_but({back.front(), back[1], missing[1], missing[2]});
    EXPECT_EQ(difference(static_cast<uint64_t>(back[1]), read_file(path("moved"))), "");
    EXPECT_EQ(difference(static_cast<uint64_t>(missing[2]), read_file(path("moved late"))), "");
    EXPECT_EQ(read_file(name(missing[3])), "replaces");
    EXPECT_EQ(read_file(name(missing.front())), "newer");
    EXPECT_EQ(read_file(path("new")), "new");
    EXPECT_TRUE(is_whole(missing.back()));
    EXPECT_TRUE(is_whole(back[2]));
    start();
  }
  stop_and_check();
}

TEST_F(StartingTest, AnFsyncWaitsAndAStopWaitsForNothing) {
  const auto missing = there(false);
  ASSERT_EQ(store(path("new"), "new"), 0);
  auto synced = std::async(std::launch::async, [&] { return sync_directory(); });
  EXPECT_EQ(synced.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  go_on();
  EXPECT_EQ(synced.get(), 0);
  start_held();
  auto goes_on = std::async(std::launch::async, [&] {
    EXPECT_TRUE(
        eventually([&] { return mount().log().find("before all of its entries were back") != npos; }));
    go_on();
  });
  stop();
  goes_on.get();
  start();
  EXPECT_EQ(read_file(path("new")), "new");
  expect_all_but({});
  stop_and_check();
}

TEST_F(StartingTest, AStopWaitsForAllIfAClientHasStored) {
  ASSERT_EQ(store(path("newer"), "newer"), 0);
  ASSERT_EQ(::kill(mount().pid(), SIGTERM), 0);
  go_on();
  stop();
  start();
  EXPECT_EQ(read_file(path("newer")), "newer");
  expect_all_but({});
  stop_and_check();
}

// What is back is served, what was stored meanwhile too; the next start has all.
TEST_F(StartingTest, AFailureInTheMidstLosesNothing) {
  const auto back = there(true), missing = there(false);
  ASSERT_EQ(store(path("new"), "new"), 0);
  arm("failing restore a file " + std::to_string(ENOMEM));
  go_on();
  until_all_are_back();
  EXPECT_NE(mount().log().find("cannot be restored"), npos) << mount().log();
  EXPECT_EQ(there(true), back);
  EXPECT_TRUE(is_whole(back.front()));
  EXPECT_EQ(read_file(path("new")), "new");
  EXPECT_EQ(error_of(::open(name(missing.front()).c_str(), O_RDONLY)), EIO) << "it may still come back";
  EXPECT_EQ(store(name(missing.front()), "newer"), EIO);
  EXPECT_EQ(::unlink(name(back.front()).c_str()), 0);
  EXPECT_EQ(sync_directory(), EIO);
  arm("");
  replace_server();
  until_all_are_back();
  expect_all_but({back.front()});
  EXPECT_EQ(read_file(path("new")), "new");
  start();
  expect_all_but({back.front()});
  EXPECT_EQ(read_file(path("new")), "new");
  stop_and_check();
}

TEST_F(StartingTest, ATakeoverMissesNoNameToCome) {
  const int missing = there(false).front();
  ASSERT_EQ(::kill(mount().serving_pid(), SIGSTOP), 0);  // so that this process does not go on
  go_on();
  arm("pause walk begun");
  kill_server();
  ASSERT_TRUE(eventually([&] { return exists(paused()); }));
  auto found = std::async(std::launch::async, [&] { return is_whole(missing); });
  EXPECT_EQ(found.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  go_on();
  EXPECT_TRUE(found.get());
  until_all_are_back();
  expect_all_but({});
  stop_and_check();
}

// Only the disk tells which names are to come. Until it is back, none is a miss, or free to take but in a
// directory that was made meanwhile.
TEST_F(StartingTest, WithoutItsDiskNoNameIsFreeToTake) {
  const auto back = there(true), missing = there(false);
  const std::string hidden = spill_file() + ".away";
  ASSERT_EQ(::rename(spill_file().c_str(), hidden.c_str()), 0);
  replace_server();
  EXPECT_EQ(stat("disk_away"), 1);
  const std::string its = name(missing.front());
  EXPECT_EQ(error_of(::open(its.c_str(), O_RDONLY)), EIO);
  struct ::stat status {};
  EXPECT_EQ(error_of(::stat(its.c_str(), &status)), EIO);
  EXPECT_EQ(error_of(::open(its.c_str(), O_CREAT | O_EXCL | O_WRONLY, 0644)), EIO);
  EXPECT_EQ(error_of(::mkdir(its.c_str(), 0755)), EIO);
  EXPECT_EQ(error_of(::symlink("x", its.c_str())), EIO);
  EXPECT_EQ(error_of(::rename(name(back.front()).c_str(), its.c_str())), EIO);
  EXPECT_EQ(error_of(::open(path("unknown").c_str(), O_RDONLY)), EIO);
  EXPECT_EQ(::stat(name(back.front()).c_str(), &status), 0);
  ASSERT_EQ(::rename(hidden.c_str(), spill_file().c_str()), 0);
  EXPECT_TRUE(becomes("disk_away", 0));
  until_all_are_back();
  expect_all_but({});
  EXPECT_TRUE(is_whole(missing.front()));
  EXPECT_EQ(error_of(::open(path("unknown").c_str(), O_RDONLY)), ENOENT);
  start();
  expect_all_but({});
  stop_and_check();
}

TEST_F(StartingTest, AFullPoolMakesItsWritersWait) {
  auto stored = std::async(std::launch::async, [&] {
    int code = 0;
    for (int i = 0; i < 40 && code == 0; ++i) code = store(path("w" + std::to_string(i)), pattern(i, kMiB));
    return code;
  });
  EXPECT_TRUE(eventually([&] { return stat("used_bytes") > static_cast<int64_t>(29 * kMiB); }));
  EXPECT_EQ(stored.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout);
  go_on();
  EXPECT_EQ(stored.get(), 0);
  until_all_are_back();
  for (int i = 0; i < 40; ++i)
    EXPECT_EQ(difference(static_cast<uint64_t>(i), read_file(path("w" + std::to_string(i)))), "") << i;
  stop_and_check();
}

TEST_F(StartingTest, WhatAnFsyncWaitsForIsNotDiscarded) {
  write_file(path(".pool/durability"), "none\n");
  make_directory(path("new"), 0755);
  ASSERT_EQ(store(path("new/synced"), "synced"), 0);
  auto synced = std::async(std::launch::async, [&] { return sync_directory("new"); });
  EXPECT_EQ(synced.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  auto evicted = std::async(std::launch::async, [&] { write_file(path(".pool/evict"), "100%\n"); });
  EXPECT_EQ(evicted.wait_for(std::chrono::milliseconds(300)), std::future_status::timeout);
  go_on();
  EXPECT_EQ(synced.get(), 0);
  evicted.get();
  EXPECT_EQ(read_file(path("new/synced")), "synced");
  start();
  EXPECT_EQ(read_file(path("new/synced")), "synced");
  stop_and_check();
}

TEST_F(StartingTest, AFileThatCannotBeMadeIsDroppedAndHoldsUpNoOther) {
  const auto missing = there(false);
  arm("fail restore a file " + std::to_string(EPERM));
  EXPECT_EQ(error_of(::open(name(missing.front()).c_str(), O_RDONLY)), ENOENT);
  EXPECT_EQ(store(name(missing.front()), "newer"), 0);
  go_on();
  until_all_are_back();
  EXPECT_EQ(read_file(name(missing.front())), "newer");
  expect_all_but({});
  start();
  EXPECT_EQ(read_file(name(missing.front())), "newer");
  stop_and_check();
}

// What is dropped frees its name for good, also if this process dies.
TEST_F(StartingTest, ANameThatWasDroppedDoesNotComeBack) {
  const auto missing = there(false);
  arm("fail restore a file " + std::to_string(ENOSPC));
  EXPECT_EQ(error_of(::open(name(missing.front()).c_str(), O_RDONLY)), ENOENT);
  EXPECT_EQ(store(name(missing.front()), "newer"), 0);
  EXPECT_EQ(::unlink(name(missing.front()).c_str()), 0);
  replace_server();
  until_all_are_back();
  expect_all_but({missing.front()});
  start();
  expect_all_but({missing.front()});
  stop_and_check();
}

TEST_F(StartingTest, ANameThatWasDroppedDoesNotComeBackAfterAStopThatWaitsForNothing) {
  const auto missing = there(false);
  write_file(path(".pool/durability"), "none\n");
  arm("fail restore a file " + std::to_string(ENOSPC));
  EXPECT_EQ(error_of(::open(name(missing.front()).c_str(), O_RDONLY)), ENOENT);
  ASSERT_EQ(::kill(mount().pid(), SIGTERM), 0);
  EXPECT_TRUE(eventually([&] { return mount().log().find("before all of its entries were back") != npos; }));
  go_on();
  stop();
  start();
  expect_all_but({missing.front()});
  stop_and_check();
}

TEST_F(StartingTest, ThePoolStaysWhileItIsRestored) {
  EXPECT_EQ(error_of(::rmdir(mount().path().c_str())), EBUSY);
  go_on();
  until_all_are_back();
  expect_all_but({});
  stop_and_check();
}

}  // namespace
}  // namespace kvcachefs::test
