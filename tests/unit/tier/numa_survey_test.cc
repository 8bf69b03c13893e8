#include "tier/pool/numa_survey.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

namespace kvcachefs::numa_survey_test {

constexpr uint64_t kMany = NumaSurvey::kFewEntries + 1;

class NumaSurveyTest : public ::testing::Test {
 protected:
  // Each look finds how many there were.
  NumaSurvey::Usage look() {
    now_ns_ += cost_ns_;
    if (meanwhile_) meanwhile_();
    return {{.node = 0, .bytes = ++looks_, .huge_bytes = 0}};
  }
  uint64_t ask(uint64_t cost_ns) {
    cost_ns_ = cost_ns;
    return survey_.recent().at(0).bytes;
  }

  uint64_t looks_ = 0;
  uint64_t now_ns_ = 1000;
  uint64_t cost_ns_ = 0;
  std::function<void()> meanwhile_;
  NumaSurvey survey_{[this] { return look(); }, [this] { return now_ns_; }};
};

TEST_F(NumaSurveyTest, StatisticsOfFewEntriesAreLookedUp) {
  EXPECT_EQ(survey_.known(NumaSurvey::kFewEntries).size(), 1u);
  EXPECT_EQ(looks_, 1u);
}

TEST_F(NumaSurveyTest, StatisticsOfManyAreWhatTheWorkerHasFound) {
  cost_ns_ = 100;
  survey_.step();
  EXPECT_EQ(looks_, 0u) << "nobody has asked";
  EXPECT_TRUE(survey_.known(kMany).empty());
  EXPECT_EQ(looks_, 0u);
  survey_.step();
  EXPECT_EQ(looks_, 1u);
  ASSERT_EQ(survey_.known(kMany).size(), 1u);
  EXPECT_EQ(survey_.known(kMany)[0].bytes, 1u);
  EXPECT_EQ(looks_, 1u);
}

TEST_F(NumaSurveyTest, WhatWasFoundIsKeptForAMultipleOfItsPrice) {
  EXPECT_EQ(ask(100), 1u);
  now_ns_ += 100 * NumaSurvey::kRest - 1;
  EXPECT_EQ(ask(100), 1u);
  now_ns_ += 1;
  EXPECT_EQ(ask(200), 2u);
  now_ns_ += 100 * NumaSurvey::kRest;
  EXPECT_EQ(ask(200), 2u);
}

TEST_F(NumaSurveyTest, WhatIsFreeIsAlwaysFresh) {
  EXPECT_EQ(ask(0), 1u);
  EXPECT_EQ(ask(0), 2u);
}

TEST_F(NumaSurveyTest, WhoComesDuringALookGetsTheLastResult) {
  EXPECT_EQ(ask(0), 1u);
  meanwhile_ = [this] { EXPECT_EQ(survey_.recent().at(0).bytes, 1u); };
  EXPECT_EQ(ask(0), 2u);
}

}  // namespace kvcachefs::numa_survey_test
