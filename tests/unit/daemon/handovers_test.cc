#include "daemon/handovers.h"

#include <gtest/gtest.h>

namespace kvcachefs::handovers_test {

TEST(HandoversTest, OnesInVainAreCounted) {
  Handovers handovers;
  EXPECT_EQ(handovers.lately(), 0u);
  for (unsigned count = 1; count < 4; ++count) {
    handovers.ended({"p"}, true);
    EXPECT_EQ(handovers.lately(), count);
  }
}

TEST(HandoversTest, DeathsAreNone) {
  Handovers handovers;
  handovers.ended({"p"}, false);
  EXPECT_EQ(handovers.lately(), 0u);
  handovers.ended({"p"}, true);
  handovers.ended({"p"}, false);
  EXPECT_EQ(handovers.lately(), 1u) << "the disk was not had since";
}

TEST(HandoversTest, ADiskThatWasHadCountsNoMore) {
  Handovers handovers;
  for (int round = 0; round < 3; ++round) {
    handovers.ended({"p"}, true);
    EXPECT_EQ(handovers.lately(), 1u);
    handovers.ended({}, false);
    EXPECT_EQ(handovers.lately(), 0u);
    handovers.ended({"p"}, false);
    EXPECT_EQ(handovers.lately(), 0u);
  }
}

TEST(HandoversTest, OneOfSeveralDisksIsEnough) {
  Handovers handovers;
  handovers.ended({"p", "q"}, true);
  handovers.ended({"q", "p"}, true);
  EXPECT_EQ(handovers.lately(), 2u);
  handovers.ended({"q"}, true);
  EXPECT_EQ(handovers.lately(), 1u) << "that for q";
}

}  // namespace kvcachefs::handovers_test
