#include "tier/index/simhash.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

namespace kvcachefs::simhash_test {

using Block = std::array<uint32_t, kSimilarBlockTokens>;

Block random_block(std::mt19937_64& random) {
  Block block;
  for (uint32_t& token : block) token = static_cast<uint32_t>(random());
  return block;
}

TEST(SimHashTest, HashesStayWhatTheyAre) {
  Block block;
  for (uint32_t token = 0; token < block.size(); ++token) block[token] = token * 1000;
  // Other numbers than these orphan what was stored by earlier releases.
  EXPECT_EQ(simhash_of(block), 0xb8d4f80176cdd99bu);
  EXPECT_EQ(prefix_hash_of(block), "3ea01d1f75f585c12a0697a0676237f2");
}

TEST(SimHashTest, TheOrderOfTokensDoesNotCountForTheSimHashAndDoesForThePrefixHash) {
  std::mt19937_64 random(1);
  const Block block = random_block(random);
  Block shuffled = block;
  std::ranges::shuffle(shuffled, random);
  EXPECT_EQ(simhash_of(block), simhash_of(shuffled));
  EXPECT_NE(prefix_hash_of(block), prefix_hash_of(shuffled));
}

TEST(SimHashTest, ABlockOfOneTokenHasAHashOfItsOwn) {
  Block one, other;
  one.fill(0);
  other.fill(1);
  EXPECT_GT(hamming_distance(simhash_of(one), simhash_of(other)), 16u);
}

// Of n fair coins the mean is within 5 deviations, sqrt(n) / 2 each, of n / 2 but for one time in 1.7
// million. Here are 64 bits and 2,016 pairs of them, so that fair bits fail for one seed in 800.
TEST(SimHashTest, EachBitIsAFairCoinAndIndependentOfEachOther) {
#ifdef __SANITIZE_ADDRESS__  // counting takes longer, and the hashes are the same
  constexpr int kHashes = 10'000;
#else
  constexpr int kHashes = 100'000;
#endif
  const double most_off = 5 * std::sqrt(kHashes) / 2;
  std::mt19937_64 random(2);
  std::array<int, 64> ones{};
  std::array<std::array<int, 64>, 64> equal{};
  for (int i = 0; i < kHashes; ++i) {
    const uint64_t hash = simhash_of(random_block(random));
    for (unsigned bit = 0; bit < 64; ++bit) {
      const uint64_t same = hash >> bit & 1 ? hash : ~hash;
      ones[bit] += static_cast<int>(hash >> bit & 1);
      for (unsigned other = 0; other < bit; ++other) equal[bit][other] += static_cast<int>(same >> other & 1);
    }
  }
  for (unsigned bit = 0; bit < 64; ++bit) {
    EXPECT_NEAR(ones[bit], kHashes / 2.0, most_off) << bit;
    for (unsigned other = 0; other < bit; ++other) {
      EXPECT_NEAR(equal[bit][other], kHashes / 2.0, most_off) << bit << " and " << other;
    }
  }
}

// 64 independent bits differ in 32 with a deviation of 4; dependent ones (32 repeated) have 5.7.
TEST(SimHashTest, RandomBlocksDifferAs64IndependentBitsDo) {
  constexpr int kPairs = 50'000;
  std::mt19937_64 random(3);
  double sum = 0, sum_of_squares = 0;
  for (int i = 0; i < kPairs; ++i) {
    const double distance =
        hamming_distance(simhash_of(random_block(random)), simhash_of(random_block(random)));
    sum += distance;
    sum_of_squares += distance * distance;
  }
  const double mean = sum / kPairs;
  const double variance = sum_of_squares / kPairs - mean * mean;
  EXPECT_NEAR(mean, 32, 5 * 4 / std::sqrt(kPairs));
  EXPECT_NEAR(variance, 16, 5 * 16 * std::sqrt(2.0 / kPairs));
}

// The bounds are some 10 % from what bench/micro measures.
TEST(SimHashTest, FewChangedTokensChangeFewBits) {
  std::mt19937_64 random(4);
  const std::array<std::pair<size_t, double>, 3> most_mean = {{{1, 7.3}, {2, 11}, {4, 16}}};
  for (const auto& [changes, most] : most_mean) {
    constexpr int kPairs = 20'000;
    double sum = 0;
    for (int i = 0; i < kPairs; ++i) {
      const Block block = random_block(random);
      Block changed = block;
      for (size_t token = 0; token < changes; ++token) changed[token] = static_cast<uint32_t>(random());
      sum += hamming_distance(simhash_of(block), simhash_of(changed));
    }
    EXPECT_LT(sum / kPairs, most) << changes;
  }
}

}  // namespace kvcachefs::simhash_test
