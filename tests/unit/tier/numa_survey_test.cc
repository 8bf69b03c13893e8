#include "tier/pool/numa_survey.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>

namespace kvcachefs::numa_survey_test {

constexpr uint64_t kMany = NumaSurvey::kGlance + 1;

class NumaSurveyTest : public ::testing::Test {
 protected:
  NumaSurvey::Usage look(uint64_t entries) {
    ++looks_;
    now_ns_ += cost_ns_;
    if (entries == NumaSurvey::kLook && meanwhile_) meanwhile_();
    return {{.node = 0, .bytes = entries * 100 + looks_, .huge_bytes = 0}};
  }
  // What was looked at, and in the how manieth look.
  uint64_t entries_seen(uint64_t of) { return survey_.recent(of).at(0).bytes / 100; }
  uint64_t look_seen(uint64_t of) { return survey_.recent(of).at(0).bytes % 100; }

  uint64_t looks_ = 0;
  uint64_t now_ns_ = 1000;
  uint64_t cost_ns_ = 0;
  std::function<void()> meanwhile_;
  NumaSurvey survey_{[this](uint64_t entries) { return look(entries); }, [this] { return now_ns_; }};
};

TEST_F(NumaSurveyTest, FewEntriesAreLookedAtByEachRead) {
  EXPECT_EQ(look_seen(NumaSurvey::kGlance), 1u);
  EXPECT_EQ(look_seen(NumaSurvey::kGlance), 2u);
  survey_.step();
  EXPECT_EQ(looks_, 2u) << "the worker has nothing to add";
}

TEST_F(NumaSurveyTest, ManyAreEstimatedUntilTheWorkerHasLooked) {
  survey_.step();
  EXPECT_EQ(looks_, 0u) << "nobody has asked";
  EXPECT_EQ(entries_seen(kMany), NumaSurvey::kGlance);
  meanwhile_ = [this] {
    EXPECT_EQ(entries_seen(kMany), NumaSurvey::kGlance) << "no read waits for the look";
  };
  survey_.step();
  meanwhile_ = {};
  const uint64_t looks = looks_;
  EXPECT_EQ(entries_seen(kMany), NumaSurvey::kLook);
  EXPECT_EQ(entries_seen(kMany), NumaSurvey::kLook);
  EXPECT_EQ(looks_, looks);
}

TEST_F(NumaSurveyTest, AnOldLookDoesNotAnswer) {
  (void)look_seen(kMany);
  survey_.step();
  now_ns_ += NumaSurvey::kFreshNs - 1;
  EXPECT_EQ(entries_seen(kMany), NumaSurvey::kLook);
  now_ns_ += 1;
  EXPECT_EQ(entries_seen(kMany), NumaSurvey::kGlance);
  survey_.step();
  EXPECT_EQ(entries_seen(kMany), NumaSurvey::kLook);
}

TEST_F(NumaSurveyTest, TheWorkerRestsForAMultipleOfWhatItsLookTook) {
  cost_ns_ = 100;
  (void)look_seen(kMany);
  survey_.step();
  EXPECT_EQ(looks_, 2u);
  (void)look_seen(kMany);
  now_ns_ += 100 * NumaSurvey::kRest - 1;
  survey_.step();
  EXPECT_EQ(looks_, 2u);
  now_ns_ += 1;
  survey_.step();
  EXPECT_EQ(looks_, 3u) << "it was asked while it rested";
  now_ns_ += 100 * NumaSurvey::kRest;
  survey_.step();
  EXPECT_EQ(looks_, 3u) << "nobody has asked since";
}

TEST_F(NumaSurveyTest, TheEndIsToldToTheLook) {
  (void)look_seen(kMany);
  meanwhile_ = [this] {
    survey_.end();
    EXPECT_TRUE(survey_.ended());
  };
  survey_.step();
}

}  // namespace kvcachefs::numa_survey_test
