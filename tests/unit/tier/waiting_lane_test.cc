#include "tier/pool/waiting_lane.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>

namespace kvcachefs::waiting_lane_test {

constexpr auto kNow = std::chrono::milliseconds(0);

class WaitingLaneTest : public ::testing::Test {
 protected:
  bool hand_over(char name) {
    WaitingLane::Job job = [this, name] { done_ += name; };
    return lane_.hand_over(job, start_);
  }

  WaitingLane lane_;
  std::string done_;
  unsigned started_ = 0;
  bool can_start_ = true;
  const std::function<bool()> start_ = [this] {
    if (can_start_) ++started_;
    return can_start_;
  };
};

TEST_F(WaitingLaneTest, JobsAreDoneInTheOrderInWhichTheyCame) {
  for (const char name : {'a', 'b', 'c'}) EXPECT_TRUE(hand_over(name));
  EXPECT_EQ(lane_.size(), 3u);
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_EQ(done_, "a");
  EXPECT_EQ(lane_.size(), 2u);
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_EQ(done_, "abc");
  EXPECT_EQ(lane_.size(), 0u);
}

TEST_F(WaitingLaneTest, ThereAreOnlySoManyThreads) {
  for (unsigned job = 0; job < 3 * WaitingLane::kThreads; ++job) EXPECT_TRUE(hand_over('x'));
  EXPECT_EQ(started_, WaitingLane::kThreads);
}

TEST_F(WaitingLaneTest, AnIdleThreadIsEnough) {
  EXPECT_TRUE(hand_over('a'));
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_TRUE(hand_over('b'));
  EXPECT_EQ(started_, 1u);
  EXPECT_TRUE(hand_over('c'));
  EXPECT_EQ(started_, 2u) << "it is to do b";
}

TEST_F(WaitingLaneTest, AThreadForWhichThereIsNothingEnds) {
  EXPECT_TRUE(hand_over('a'));
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_FALSE(lane_.step(kNow));
  EXPECT_TRUE(hand_over('b'));
  EXPECT_EQ(started_, 2u);
  EXPECT_TRUE(lane_.step(kNow));
}

TEST_F(WaitingLaneTest, WithoutAThreadTheJobStaysTheCallers) {
  can_start_ = false;
  WaitingLane::Job job = [this] { done_ += 'a'; };
  EXPECT_FALSE(lane_.hand_over(job, start_));
  EXPECT_EQ(lane_.size(), 0u);
  job();
  EXPECT_EQ(done_, "a");
}

TEST_F(WaitingLaneTest, OneThreadDoesWhatNoOtherCanBeHadFor) {
  EXPECT_TRUE(hand_over('a'));
  can_start_ = false;
  EXPECT_TRUE(hand_over('b'));
  EXPECT_EQ(started_, 1u);
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_EQ(done_, "ab");
  EXPECT_FALSE(lane_.step(kNow));
  EXPECT_FALSE(hand_over('c')) << "that thread has ended";
}

// A request counts until it is answered, and what it keeps is given back before.
TEST_F(WaitingLaneTest, AJobCountsUntilItIsDone) {
  auto share = std::make_shared<int>();
  const std::weak_ptr<int> kept = share;
  size_t during = 0;
  WaitingLane::Job job = [this, &during, share = std::move(share)] { during = lane_.size(); };
  EXPECT_TRUE(lane_.hand_over(job, start_));
  EXPECT_FALSE(kept.expired());
  EXPECT_TRUE(lane_.step(kNow));
  EXPECT_EQ(during, 1u);
  EXPECT_TRUE(kept.expired());
}

TEST_F(WaitingLaneTest, ItGoesBeforeCallersThatMayNotWait) {
  EXPECT_FALSE(lane_.goes_before({.may_wait = false}));
  EXPECT_TRUE(hand_over('a'));
  EXPECT_TRUE(lane_.goes_before({.may_wait = false}));
  EXPECT_FALSE(lane_.goes_before({}));
  EXPECT_FALSE(lane_.waits_ended());
  lane_.end_waits();
  EXPECT_TRUE(lane_.waits_ended());
}

TEST_F(WaitingLaneTest, AtTheEndWhatWaitsIsDoneAndNothingComes) {
  EXPECT_TRUE(hand_over('a'));
  EXPECT_TRUE(hand_over('b'));
  lane_.end();
  EXPECT_FALSE(hand_over('c'));
  EXPECT_TRUE(lane_.step(std::chrono::minutes(10)));
  EXPECT_TRUE(lane_.step(std::chrono::minutes(10)));
  EXPECT_FALSE(lane_.step(std::chrono::minutes(10))) << "nor does a thread wait";
  EXPECT_EQ(done_, "ab");
}

}  // namespace kvcachefs::waiting_lane_test
