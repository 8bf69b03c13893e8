#include "base/costly_value.h"

#include <gtest/gtest.h>

namespace kvcachefs::costly_value_test {

class CostlyValueTest : public testing::Test {
 protected:
  int ask(uint64_t cost_ns) {
    return value_.get(
        [&] {
          now_ns_ += cost_ns;
          return ++found_;
        },
        [this] { return now_ns_; });
  }

  CostlyValue<int> value_;
  uint64_t now_ns_ = 1000;
  int found_ = 0;
};

TEST_F(CostlyValueTest, IsFoundAtFirst) {
  EXPECT_EQ(ask(100), 1);
}

TEST_F(CostlyValueTest, IsKeptForAMultipleOfItsPrice) {
  EXPECT_EQ(ask(100), 1);
  now_ns_ += 100 * CostlyValue<int>::kRest - 1;
  EXPECT_EQ(ask(100), 1);
  now_ns_ += 1;
  EXPECT_EQ(ask(200), 2);
  now_ns_ += 100 * CostlyValue<int>::kRest;
  EXPECT_EQ(ask(200), 2);
}

TEST_F(CostlyValueTest, WhatIsFreeIsAlwaysFresh) {
  EXPECT_EQ(ask(0), 1);
  EXPECT_EQ(ask(0), 2);
}

TEST_F(CostlyValueTest, WhoComesMeanwhileGetsTheLastValue) {
  EXPECT_EQ(ask(0), 1);
  const int outer = value_.get(
      [&] {
        EXPECT_EQ(ask(0), 1);
        return 7;
      },
      [this] { return now_ns_; });
  EXPECT_EQ(outer, 7);
}

}  // namespace kvcachefs::costly_value_test
