// The evictor where inodes run short (tier/pool/evictor_inodes.cc), in a pool of 1 MiB.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "tests/support/pool_parts.h"
#include "tier/pool/evictor.h"

namespace kvcachefs::evictor_inodes_test {

constexpr uint64_t kMinuteMs = 60'000;

// A round at each wake-up.
class EvictorThread {
 public:
  EvictorThread(Wakeup& wakeup, std::function<void()> round)
      : wakeup_(wakeup), thread_([this, its = std::move(round)] {
          for (;;) {
            wakeup_.wait(std::chrono::minutes(1));
            if (ended_) return;
            its();
          }
        }) {}
  ~EvictorThread() {
    ended_ = true;
    wakeup_.wake();
    thread_.join();
  }
  EvictorThread(const EvictorThread&) = delete;
  EvictorThread& operator=(const EvictorThread&) = delete;

 private:
  Wakeup& wakeup_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

class EvictorInodesTest : public test::PoolPartsTest {
 protected:
  EvictorInodesTest() : PoolPartsTest(Upto::kEvictor) {}
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_TRUE(arena_->resize(kMiB));
    capacity_->limit().set_size(kMiB);
    // Of a directory with the sticky bit some stay.
    ASSERT_EQ(::fchmod(root(), 0770), 0);
  }
  uint64_t free_inodes() const { return arena_->usage().free_inodes; }
  // Takes inodes until this many are free. The files are none of the pool's.
  void leave_free(uint64_t inodes) {
    while (free_inodes() > inodes) {
      const std::string name = "taken" + std::to_string(++taken_);
      ASSERT_EQ(::mknodat(root(), name.c_str(), S_IFIFO | 0600, 0), 0);
    }
  }
  void give_back(uint64_t inodes) {
    for (; inodes > 0; --inodes) {
      ASSERT_EQ(::unlinkat(root(), ("taken" + std::to_string(taken_--)).c_str(), 0), 0);
    }
  }
  void run_short() { leave_free(arena_->usage().inodes / 8 - 1); }
  // Which this many milliseconds ago was made or found to be held.
  EmptyDirectories::Directory rested(const std::string& name, uint64_t rest_ms = 2 * kMinuteMs) {
    const EmptyDirectories::Directory directory{.handle = handle(name)};
    tree_->empty_directories()->rests(directory, now_coarse_ms() - rest_ms);
    return directory;
  }
  EmptyDirectories::Counts counts() { return tree_->empty_directories()->counts(); }

 private:
  int taken_ = 0;
};

TEST_F(EvictorInodesTest, EmptyDirectoriesThatHaveRestedLeave) {
  for (const char* name : {"d", "d/empty", "d/new", "d/full"}) make_directory(name);
  (void)make("d/full/f");
  for (const char* name : {"d", "d/empty", "d/full"}) (void)rested(name);
  rested("d/new", kMinuteMs / 2);
  tidy();
  EXPECT_TRUE(is_there("d/empty")) << "inodes are there";
  EXPECT_EQ(counts().ripe, 1u) << "which is empty";
  run_short();
  tidy();
  EXPECT_FALSE(is_there("d/empty"));
  EXPECT_TRUE(is_there("d") && is_there("d/new") && is_there("d/full"));
  EXPECT_EQ(counters_.directories_reclaimed, 1u);
  EXPECT_EQ(heard_.changes, std::vector<uint64_t>{ino("d")}) << "its time has changed";
}

TEST_F(EvictorInodesTest, ThoseAtTheTopLeaveLast) {
  const uint64_t top = make_known_directory("top");
  make_directory("d");
  (void)make("d/f");
  const uint64_t below = make_known_directory("d/below");
  for (const uint64_t its : {top, below}) set_looked_up(its, 2 * kMinuteMs);
  (void)rested("top");
  (void)rested("d/below");
  run_short();
  tidy();
  EXPECT_EQ(heard_.to_let_go, (std::vector<uint64_t>{below, top}));
}

TEST_F(EvictorInodesTest, TheyLeaveFromAnEighthOnUntilAQuarterIsFree) {
  const auto leaves = [&](const std::string& name) {
    make_directory(name);
    (void)rested(name);
    tidy();
    return !is_there(name);
  };
  const uint64_t inodes = arena_->usage().inodes;
  leave_free(inodes / 8 + 2);
  EXPECT_FALSE(leaves("a"));
  leave_free(inodes / 8 - 1);
  EXPECT_TRUE(leaves("b"));
  give_back(inodes / 8 - 8);
  ASSERT_LT(free_inodes(), inodes / 4);
  EXPECT_TRUE(leaves("c"));
  give_back(16);
  EXPECT_FALSE(leaves("e"));
}

TEST_F(EvictorInodesTest, WhereInodesAreVeryShortOneSecondOfRestIsEnough) {
  for (const char* name : {"a", "b"}) make_directory(name);
  (void)rested("a", 2000);
  (void)rested("b", 100);
  run_short();
  tidy();
  EXPECT_TRUE(is_there("a"));
  leave_free(arena_->usage().inodes / 16 - 2);
  tidy();
  EXPECT_FALSE(is_there("a"));
  EXPECT_TRUE(is_there("b"));
}

TEST_F(EvictorInodesTest, WhileEmptyDirectoriesHoldTheInodesNoEntryLeavesForAnother) {
  const uint64_t f = store("f");
  const uint64_t inodes = arena_->usage().inodes;
  leave_free(inodes / 2);
  EXPECT_FALSE(evictor_->gives_way(0, &limits_.directories));
  while (free_inodes() >= inodes / 50) {
    const std::string name = "d" + std::to_string(free_inodes());
    make_directory(name);
    (void)rested(name, 0);
  }
  EXPECT_TRUE(evictor_->gives_way(0, &limits_.directories));
  EXPECT_FALSE(evictor_->gives_way(0, &limits_.entries));
  EXPECT_EQ(evictor_->wait_to_make({.may_wait = false}, 0, &limits_.directories), Waited::kWouldWait);
  tidy();
  EXPECT_TRUE(state(f).exists);
}

TEST_F(EvictorInodesTest, ADirectoryThatTheKernelKnowsLeavesOnceItHasForgotten) {
  const uint64_t d = make_known_directory("d");
  set_looked_up(d, 2 * kMinuteMs);
  (void)rested("d");
  run_short();
  tidy();
  EXPECT_EQ(heard_.to_let_go, std::vector<uint64_t>{d});
  EXPECT_EQ(counts().asked, 1u);
  tidy();
  EXPECT_EQ(heard_.to_let_go.size(), 1u) << "it is asked once";
  heard_.told(d, false);
  tidy();
  EXPECT_TRUE(is_there("d")) << "the FORGET is on its way";
  inodes_->forget(d, 1);
  tidy();
  EXPECT_FALSE(is_there("d"));
}

TEST_F(EvictorInodesTest, ADirectoryThatAProcessHasRestsAgain) {
  const uint64_t d = make_known_directory("d");
  set_looked_up(d, 2 * kMinuteMs);
  (void)rested("d");
  run_short();
  tidy();
  heard_.told(d, true);
  tidy();
  EXPECT_EQ(counts().asked, 0u);
  EXPECT_EQ(counts().resting, 1u);
  EXPECT_TRUE(heard_.to_drop.empty()) << "no miss was looked up in it";
}

TEST_F(EvictorInodesTest, OneThatWasLookedUpMeanwhileRestsAgain) {
  const uint64_t d = make_known_directory("d");
  set_looked_up(d, kMinuteMs / 2);
  (void)rested("d");
  run_short();
  tidy();
  EXPECT_TRUE(heard_.to_let_go.empty());
  EXPECT_EQ(counts().resting, 1u);
}

TEST_F(EvictorInodesTest, WhatTheKernelCannotLetGoOfLosesItsName) {
  const uint64_t missed_in = make_known_directory("missed in");
  const uint64_t d = make_known_directory("d");
  for (const uint64_t its : {missed_in, d}) set_looked_up(its, 2 * kMinuteMs);
  inodes_->looked_for_nothing(missed_in);
  (void)rested("missed in");
  run_short();
  tidy();
  heard_.told(missed_in, true);
  tidy();
  const uint64_t root_ino = arena_->tree().ino;
  ASSERT_EQ(heard_.to_drop, (std::vector<test::Heard::Name>{{root_ino, missed_in, "missed in"}}));
  EXPECT_EQ(counts().asked_by_name, 1u);
  heard_.lets_go = false;  // before Linux 6.18
  (void)rested("d");
  tidy();
  ASSERT_EQ(heard_.to_drop.size(), 2u);
  EXPECT_EQ(heard_.to_drop.back(), (test::Heard::Name{root_ino, d, "d"}));
}

TEST_F(EvictorInodesTest, OneThatWasLookedUpAfterTheKernelWasAskedKeepsItsName) {
  const uint64_t d = make_known_directory("d");
  inodes_->looked_for_nothing(d);
  ASSERT_TRUE(
      tree_->empty_directories()->ask({.handle = handle("d")}, false, now_coarse_ms() - 3 * kMinuteMs));
  set_looked_up(d, 2 * kMinuteMs);
  tree_->empty_directories()->told(d, true);
  run_short();
  tidy();
  EXPECT_TRUE(heard_.to_drop.empty());
  EXPECT_EQ(counts().resting, 1u);
}

TEST_F(EvictorInodesTest, AnAdoptedDirectoryLeavesIfTheKernelDoesNotKnowIt) {
  const uint64_t d = make_known_directory("d");
  set_looked_up(d, 2 * kMinuteMs);
  set_adopted(d);
  (void)rested("d");
  run_short();
  tidy();
  heard_.told(d, false);
  tidy();
  EXPECT_FALSE(is_there("d"));
  EXPECT_FALSE(state(d).exists);
}

TEST_F(EvictorInodesTest, WhileRestoringNoDirectoryLeaves) {
  make_directory("d");
  (void)rested("d");
  run_short();
  disk_->set_restoring(true);
  tidy();
  EXPECT_TRUE(is_there("d"));
  (void)disk_->end_restoring();
  tidy();
  EXPECT_FALSE(is_there("d"));
}

TEST_F(EvictorInodesTest, WhereDirectoriesAreNotEnoughEntriesLeave) {
  const uint64_t f = store("f"), g = store("g");
  open_entry(g);
  run_short();
  tidy();
  EXPECT_TRUE(state(f).exists);
  leave_free(1);
  tidy();
  EXPECT_FALSE(state(f).exists);
  EXPECT_TRUE(state(g).exists);
}

TEST_F(EvictorInodesTest, AnEntryOnTheDiskAloneIsDiscardedForItsInode) {
  attach_disk();
  const uint64_t f = store("f"), g = store("g");
  make_cold(g);
  leave_free(arena_->usage().inodes / 50 - 1);
  tidy();
  EXPECT_FALSE(state(g).exists);
  EXPECT_TRUE(state(f).exists);
}

TEST_F(EvictorInodesTest, AFreshEntryLeavesForARequestThatWaitsForAnInode) {
  const uint64_t fresh = store_fresh("fresh");
  leave_free(0);
  tidy();
  EXPECT_TRUE(state(fresh).exists) << "nobody waits";
  const EvictorThread evictor(wakeup_, [this] { tidy(); });
  const uint64_t begun_ns = now_ns();
  while (free_inodes() == 0 && evictor_->wait_to_make({begun_ns}) == Waited::kRoom) {
  }
  EXPECT_GT(free_inodes(), 0u);
  EXPECT_FALSE(state(fresh).exists);
}

TEST_F(EvictorInodesTest, ARequestThatWaitsHearsThatNothingCanGo) {
  leave_free(0);
  const EvictorThread evictor(wakeup_, [this] { tidy(); });
  // The test may be held up; by itself a request would wait two seconds.
  EXPECT_TRUE(test::eventually([&] {
    const uint64_t begun_ns = now_ns();
    while (evictor_->wait_to_make({begun_ns}) == Waited::kRoom) {
    }
    return now_ns() - begun_ns < 1'500'000'000;
  }));
}

TEST_F(EvictorInodesTest, NoRequestWaitsForLong) {
  constexpr uint64_t kLongAgoNs = 3'000'000'000;
  leave_free(0);
  EXPECT_EQ(evictor_->wait_to_make({now_ns() - kLongAgoNs}), Waited::kNoRoom);
  ASSERT_EQ(::unlinkat(root(), "taken1", 0), 0);
  EXPECT_EQ(evictor_->wait_to_make({now_ns() - kLongAgoNs}), Waited::kNoRoom) << "for a page neither";
  capacity_->close();
  EXPECT_EQ(evictor_->wait_to_make({now_ns()}), Waited::kNoRoom) << "a removed pool";
}

TEST_F(EvictorInodesTest, ARequestWithoutPatienceHearsThatItWouldWait) {
  leave_free(0);
  EXPECT_EQ(evictor_->wait_to_make({.may_wait = false}), Waited::kWouldWait);
  capacity_->waiting().end_waits();
  EXPECT_EQ(evictor_->wait_to_make({.may_wait = false}), Waited::kNoRoom);
}

TEST_F(EvictorInodesTest, TheInodeOfARequestThatWaitsIsNotTaken) {
  leave_free(2);
  WaitingLane::Job job = [] {};
  ASSERT_TRUE(capacity_->waiting().hand_over(job, [] { return true; }));
  EXPECT_FALSE(evictor_->would_overtake({.may_wait = false})) << "there is one for both";
  leave_free(1);
  EXPECT_TRUE(evictor_->would_overtake({.may_wait = false}));
  EXPECT_FALSE(evictor_->would_overtake({})) << "it waits itself";
  ASSERT_TRUE(capacity_->waiting().step(std::chrono::milliseconds(0)));
  EXPECT_FALSE(evictor_->would_overtake({.may_wait = false})) << "nobody waits";
}

TEST_F(EvictorInodesTest, WhereAnInodeIsFreeARequestWaitsForAPage) {
  (void)fill_up();
  std::thread evictor = answer_next(Room::Answer::kTryAgain);
  EXPECT_EQ(evictor_->wait_to_make({now_ns()}), Waited::kRoom);
  evictor.join();
  EXPECT_GT(arena_->usage().free_bytes, 0u);
}

// Its parent is held by the request that waits, so that its name cannot be dropped.
TEST_F(EvictorInodesTest, ARequestDoesNotWaitForADropThatWaitsForIt) {
  leave_free(0);
  tree_->empty_directories()->ask({.handle = handle("taken1")}, true, now_coarse_ms());
  EXPECT_EQ(evictor_->wait_to_make({now_ns() - 200'000'000}), Waited::kNoRoom);
}

}  // namespace kvcachefs::evictor_inodes_test
