#include "fs/waiting_copies.h"

#include <gtest/gtest.h>

namespace kvcachefs::waiting_copies_test {

constexpr uint64_t kGiB = uint64_t{1} << 30;

TEST(WaitingCopiesTest, AShareIsGivenBackWhenItEnds) {
  WaitingCopies copies(0);
  {
    auto first = copies.take(WaitingCopies::kLeastBound - 1);
    ASSERT_TRUE(first);
    auto second = copies.take(1);
    ASSERT_TRUE(second);
    EXPECT_FALSE(copies.take(1));
    const WaitingCopies::Share moved = std::move(*second);
    second.reset();
    EXPECT_FALSE(copies.take(1)) << "it went on";
  }
  EXPECT_TRUE(copies.take(WaitingCopies::kLeastBound)) << "a refused one has taken nothing";
}

TEST(WaitingCopiesTest, TheBoundGoesWithTheMemory) {
  WaitingCopies copies(16 * kGiB);
  EXPECT_TRUE(copies.take(kGiB / 4));
  EXPECT_FALSE(copies.take(kGiB / 4 + 1));
  WaitingCopies large(1024 * kGiB);
  EXPECT_TRUE(large.take(kGiB));
  EXPECT_FALSE(large.take(kGiB + 1));
}

}  // namespace kvcachefs::waiting_copies_test
