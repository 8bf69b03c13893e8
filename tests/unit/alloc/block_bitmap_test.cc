#include "alloc/block_bitmap.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

namespace kvcachefs::block_bitmap_test {

std::optional<uint64_t> naive_next(const std::set<uint64_t>& members, uint64_t from) {
  const auto at = members.lower_bound(from);
  return at == members.end() ? std::nullopt : std::optional(*at);
}

TEST(BlockBitmapTest, EmptyHasNothing) {
  for (uint64_t size : {0, 1, 63, 64, 65, 4096, 4097, 300'000}) {
    const BlockBitmap bitmap(size);
    EXPECT_FALSE(bitmap.find_next(0)) << size;
    EXPECT_EQ(bitmap.find_next(0), std::nullopt) << size;
    EXPECT_EQ(bitmap.find_next(size), std::nullopt) << size;
    EXPECT_EQ(bitmap.find_next_around(size / 2), std::nullopt) << size;
  }
}

TEST(BlockBitmapTest, FullHasAllAndNoMore) {
  for (uint64_t size : {1, 63, 64, 65, 4095, 4096, 4097, 262'145}) {
    BlockBitmap bitmap(size, BlockBitmap::Start::kFull);
    EXPECT_TRUE(bitmap.find_next(0));
    EXPECT_EQ(bitmap.find_next(size - 1), size - 1);
    EXPECT_EQ(bitmap.find_next(size), std::nullopt);
    for (uint64_t number = 0; number < size; ++number) {
      ASSERT_EQ(bitmap.find_next(0), number);
      bitmap.clear(number);
    }
    EXPECT_FALSE(bitmap.find_next(0)) << size;
  }
}

TEST(BlockBitmapTest, GoesAroundTheEnd) {
  BlockBitmap bitmap(10'000);
  bitmap.set(7);
  EXPECT_EQ(bitmap.find_next_around(8), 7u);
  EXPECT_EQ(bitmap.find_next_around(7), 7u);
  EXPECT_EQ(bitmap.find_next_around(0), 7u);
  EXPECT_EQ(bitmap.find_next_around(~uint64_t{0}), 7u);
}

TEST(BlockBitmapTest, DoesAsASetDoes) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    std::mt19937_64 random(seed);
    const uint64_t size = 1 + random() % (seed % 3 == 0 ? 200 : seed % 3 == 1 ? 10'000 : 600'000);
    BlockBitmap bitmap(size);
    std::set<uint64_t> members;
    for (int step = 0; step < 3000; ++step) {
      const uint64_t number = random() % size;
      switch (random() % 4) {
        case 0:
        case 1:
          bitmap.set(number);
          members.insert(number);
          break;
        case 2: {
          const std::optional<uint64_t> next = bitmap.find_next_around(number);
          if (!next) break;
          bitmap.clear(*next);
          ASSERT_EQ(members.erase(*next), 1u);
          break;
        }
        default:
          bitmap.clear(number);
          members.erase(number);
      }
      const uint64_t from = random() % (size + 70);
      ASSERT_EQ(bitmap.find_next(from), naive_next(members, from)) << "seed " << seed << " step " << step;
      ASSERT_EQ(bitmap.find_next(number) == number, members.contains(number));
      ASSERT_EQ(bitmap.find_next(0).has_value(), !members.empty());
    }
  }
}

}  // namespace kvcachefs::block_bitmap_test
