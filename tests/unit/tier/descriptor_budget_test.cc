#include "tier/descriptor_budget.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <utility>
#include <vector>

namespace kvcachefs::descriptor_budget_test {

class DescriptorBudgetTest : public ::testing::Test {
 protected:
  DescriptorBudgetTest() { budget_.limit(80); }
  // take() charges up to `wanted` descriptors and returns how many the budget granted.
  uint64_t take(uid_t owner, uint16_t pool, uint64_t wanted) {
    for (uint64_t taken = 0; taken < wanted; ++taken) {
      auto charge = budget_.charge(owner, pool);
      if (!charge) {
        EXPECT_EQ(charge.error().code, EDQUOT);
        return taken;
      }
      charges_.push_back(std::move(*charge));
    }
    return wanted;
  }
  DescriptorBudget budget_;
  std::vector<DescriptorBudget::Charge> charges_;
};

TEST_F(DescriptorBudgetTest, AUserHasAQuarterAPoolAHalf) {
  EXPECT_EQ(take(1000, 1, 100), 20u);
  EXPECT_EQ(take(1000, 2, 100), 0u) << "in another pool neither";
  EXPECT_EQ(take(1001, 1, 100), 20u);
  EXPECT_EQ(take(1002, 1, 100), 0u) << "the pool has its half";
  EXPECT_EQ(take(1002, 2, 100), 20u);
  EXPECT_EQ(take(1003, 2, 100), 10u) << "an eighth stays free of them";
}

TEST_F(DescriptorBudgetTest, WhatIsGivenBackIsToBeHadAgain) {
  EXPECT_EQ(take(1000, 1, 100), 20u);
  charges_.resize(15);
  EXPECT_EQ(take(1000, 1, 100), 5u);
  charges_.clear();
  EXPECT_EQ(take(1000, 1, 100), 20u);
}

TEST_F(DescriptorBudgetTest, AMovedChargeIsOne) {
  EXPECT_EQ(take(1000, 1, 19), 19u);
  DescriptorBudget::Charge last = std::move(*budget_.charge(1000, 1));
  DescriptorBudget::Charge moved(std::move(last));
  EXPECT_EQ(take(1000, 1, 1), 0u);
  moved = {};
  EXPECT_EQ(take(1000, 1, 2), 1u);
}

TEST_F(DescriptorBudgetTest, WhatWasHeldBeforeCounts) {
  for (int i = 0; i < 30; ++i) charges_.push_back(budget_.charge_held(1000, 1));
  EXPECT_EQ(take(1000, 1, 1), 0u);
  charges_.resize(19);
  EXPECT_EQ(take(1000, 1, 5), 1u);
}

}  // namespace kvcachefs::descriptor_budget_test
