#include "tier/disk/away_disk.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <vector>

#include "tests/support/mount.h"

namespace kvcachefs::away_disk_test {

using namespace std::chrono_literals;
using Kind = PromoteOutcome::Kind;

bool is_read_error(const PromoteOutcome& outcome) {
  return outcome.kind == Kind::kFailed && outcome.finding.kind == Finding::Kind::kUnreadable &&
         outcome.finding.error == EIO;
}

// A waiter that keeps the outcomes that it is told.
auto told(std::vector<PromoteOutcome>& outcomes) {
  return [&outcomes](const PromoteOutcome& outcome) { outcomes.push_back(outcome); };
}

TEST(AwayDisk, WaitersWaitUntilTheEnd) {
  AwayDisk away(1h);
  std::vector<PromoteOutcome> outcomes;
  away.wait(told(outcomes));
  away.wait(told(outcomes));
  away.step();
  EXPECT_TRUE(away.may_be_waited_for());
  EXPECT_TRUE(outcomes.empty());
  away.close();
  ASSERT_EQ(outcomes.size(), 2u);
  for (const auto& outcome : outcomes) EXPECT_EQ(outcome.kind, Kind::kEnding);
  away.step();
  away.close();
  EXPECT_EQ(outcomes.size(), 2u) << "each is told once";
}

TEST(AwayDisk, AClosedOneKeepsNobodyWaiting) {
  AwayDisk away(1h);
  away.close();
  std::vector<PromoteOutcome> outcomes;
  away.wait(told(outcomes));
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].kind, Kind::kEnding);
}

TEST(AwayDisk, WhenPatienceIsOverTheAnswerIsAReadError) {
  AwayDisk away(0s);
  EXPECT_FALSE(away.may_be_waited_for());
  std::vector<PromoteOutcome> outcomes;
  away.wait(told(outcomes));
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_TRUE(is_read_error(outcomes[0]));
  away.close();
  away.wait(told(outcomes));
  ASSERT_EQ(outcomes.size(), 2u);
  EXPECT_EQ(outcomes[1].kind, Kind::kEnding) << "the end comes first";
}

TEST(AwayDisk, AStepTellsThoseWhosePatienceIsOver) {
  AwayDisk away(20ms);
  std::vector<PromoteOutcome> outcomes;
  away.wait(told(outcomes));
  EXPECT_TRUE(test::eventually([&] {
    away.step();
    return !outcomes.empty();
  }));
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_TRUE(is_read_error(outcomes[0]));
}

TEST(AwayDisk, AWaiterMayWaitAgain) {
  AwayDisk away(1h);
  std::vector<PromoteOutcome> outcomes;
  away.wait([&](const PromoteOutcome&) { away.wait(told(outcomes)); });
  away.close();  // it holds no lock when it tells
  ASSERT_EQ(outcomes.size(), 1u);
  EXPECT_EQ(outcomes[0].kind, Kind::kEnding);
}

TEST(AwayDisk, WhatTheDiskHasOrIsToHaveIsKept) {
  const AwayDisk away(1h);
  Entry fresh;
  EXPECT_FALSE(keeps_for_disk(&away, fresh, Durability::kNone)) << "nobody was promised anything";
  EXPECT_TRUE(keeps_for_disk(&away, fresh, Durability::kWriteback));
  EXPECT_TRUE(keeps_for_disk(&away, fresh, Durability::kSync));
  Entry known;
  known.disk.node_id = 5;
  EXPECT_TRUE(keeps_for_disk(&away, known, Durability::kNone));
  for (const Entry::Tier tier : {Entry::Tier::kClean, Entry::Tier::kCold}) {
    Entry copied;
    copied.tier = tier;
    EXPECT_TRUE(keeps_for_disk(&away, copied, Durability::kNone));
    EXPECT_FALSE(keeps_for_disk(nullptr, copied, Durability::kSync)) << "no disk is away";
  }
}

}  // namespace kvcachefs::away_disk_test
