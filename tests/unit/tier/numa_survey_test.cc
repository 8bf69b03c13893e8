#include "tier/pool/numa_survey.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvcachefs::numa_survey_test {

constexpr uint64_t kMany = NumaSurvey::kFewEntries + 1;

class NumaSurveyTest : public ::testing::Test {
 protected:
  int looks_ = 0;
  NumaSurvey survey_{[this] {
    ++looks_;
    return NumaSurvey::Usage{{.node = 0, .bytes = 7, .huge_bytes = 0}};
  }};
};

TEST_F(NumaSurveyTest, StatisticsOfFewEntriesAreLookedUp) {
  EXPECT_EQ(survey_.known(NumaSurvey::kFewEntries).size(), 1u);
  EXPECT_EQ(looks_, 1);
}

TEST_F(NumaSurveyTest, StatisticsOfManyAreWhatTheWorkerHasFound) {
  survey_.step();
  EXPECT_EQ(looks_, 0) << "nobody has asked";
  EXPECT_TRUE(survey_.known(kMany).empty());
  EXPECT_EQ(looks_, 0);
  survey_.step();
  EXPECT_EQ(looks_, 1);
  ASSERT_EQ(survey_.known(kMany).size(), 1u);
  EXPECT_EQ(survey_.known(kMany)[0].bytes, 7u);
  EXPECT_EQ(looks_, 1);
}

TEST_F(NumaSurveyTest, WhoeverAsksForItWaits) {
  EXPECT_EQ(survey_.recent().size(), 1u);
  EXPECT_GE(looks_, 1);
}

}  // namespace kvcachefs::numa_survey_test
