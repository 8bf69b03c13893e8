#include "tier/candidates.h"

#include "base/clock.h"
#include "gtest/gtest.h"

namespace kvcachefs {
namespace {

TEST(Candidates, AFreshOneGrowsForASecond) {
  Candidates candidates("lru");
  Entry entry;
  entry.policy.ino = 7;
  candidates.fresh(entry);
  EXPECT_EQ(candidates.next_grown(now_coarse_ms()), std::nullopt);
  EXPECT_EQ(candidates.next_grown(now_coarse_ms() + 2000), 7u);
  EXPECT_EQ(candidates.next_grown(now_coarse_ms() + 2000), std::nullopt);
}

// The evictor reads the clock once for all; a file may be closed after that.
TEST(Candidates, AFreshOneIsNotGrownBeforeItsTime) {
  Candidates candidates("lru");
  Entry entry;
  entry.policy.ino = 7;
  const uint64_t before_ms = now_coarse_ms() - 8;
  candidates.fresh(entry);
  EXPECT_EQ(candidates.next_grown(before_ms), std::nullopt);
}

}  // namespace
}  // namespace kvcachefs
