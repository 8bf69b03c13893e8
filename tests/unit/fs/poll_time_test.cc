#include "fs/poll_time.h"

#include <gtest/gtest.h>

namespace kvcachefs::poll_time_test {

constexpr uint64_t kMostNs = 16'000;

class PollTimeTest : public testing::Test {
 protected:
  // The poll time after a request that arrived `gap_ns` after polling started.
  uint64_t after_gap(uint64_t gap_ns) {
    now_ns_ += 1'000'000;
    time_.started(now_ns_);
    time_.arrived(now_ns_ + gap_ns);
    return time_.present_ns();
  }

  PollTime time_{kMostNs};
  uint64_t now_ns_ = 0;
};

TEST_F(PollTimeTest, ShrinksWhileRequestsComeTooLate) {
  EXPECT_EQ(time_.present_ns(), kMostNs);
  EXPECT_EQ(after_gap(kMostNs + 1), kMostNs / 2);
  EXPECT_EQ(after_gap(kMostNs + 1), kMostNs / 4);
  for (int i = 0; i < 10; ++i) (void)after_gap(1'000'000'000);
  EXPECT_EQ(time_.present_ns(), kMostNs / PollTime::kLeastShare);
}

TEST_F(PollTimeTest, GrowsWithRequestsThatALongerLookWouldSee) {
  for (int i = 0; i < 10; ++i) (void)after_gap(kMostNs + 1);
  EXPECT_EQ(after_gap(kMostNs), kMostNs / PollTime::kLeastShare * 2);
  for (int i = 0; i < 10; ++i) (void)after_gap(0);
  EXPECT_EQ(time_.present_ns(), kMostNs);
}

TEST_F(PollTimeTest, OnlyTheFirstRequestAfterAStartCounts) {
  EXPECT_EQ(after_gap(kMostNs + 1), kMostNs / 2);
  time_.arrived(now_ns_ + 10 * kMostNs);
  EXPECT_EQ(time_.present_ns(), kMostNs / 2);
}

TEST(PollTime, IsOffAtZero) {
  EXPECT_FALSE(PollTime(0).is_on());
  PollTime least(1);
  EXPECT_TRUE(least.is_on());
  least.started(1);
  least.arrived(100);
  EXPECT_EQ(least.present_ns(), 1u);
}

}  // namespace kvcachefs::poll_time_test
