#include "tier/index/similar_index.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <tuple>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// g++ 12 comes without its header.
extern "C" size_t __sanitizer_get_current_allocated_bytes();
#define SANITIZED_ALLOCATOR
#endif

namespace kvcachefs::similar_index_test {

using Tokens = std::vector<uint32_t>;

constexpr size_t kNoLimit = 1'000'000;

Tokens random_tokens(std::mt19937_64& random, size_t count) {
  Tokens tokens(count);
  for (uint32_t& token : tokens) token = static_cast<uint32_t>(random() % 100'000);
  return tokens;
}

// Blocks around a few centres, with up to 6 of 16 tokens changed: distances of 0 to 16 are common.
class Clusters {
 public:
  explicit Clusters(uint64_t seed, size_t centres) : random_(seed) {
    for (size_t i = 0; i < centres; ++i) centres_.push_back(random_tokens(random_, kSimilarBlockTokens));
  }
  std::mt19937_64& random() { return random_; }
  Tokens blocks(size_t count) {
    Tokens tokens;
    for (; count > 0; --count) {
      Tokens block = centres_[random_() % centres_.size()];
      for (uint64_t changes = random_() % 7; changes > 0; --changes) {
        block[random_() % block.size()] = static_cast<uint32_t>(random_() % 100'000);
      }
      if (random_() % 4 == 0) block = random_tokens(random_, kSimilarBlockTokens);
      tokens.insert(tokens.end(), block.begin(), block.end());
    }
    return tokens;
  }

 private:
  std::mt19937_64 random_;
  std::vector<Tokens> centres_;
};

uint64_t hash_at(const Tokens& tokens, size_t token) {
  return simhash_of(std::span(tokens).subspan(token).first<kSimilarBlockTokens>());
}

// NaiveIndex has a list of all claims and looks at each.
class NaiveIndex {
 public:
  struct Claim {
    uint64_t hash;
    uint64_t ino;
    uint32_t token;
    OwnerNumber owner;
  };

  void insert(uint64_t ino, OwnerNumber owner, const Tokens& tokens, uint32_t first_token) {
    for (uint32_t token = 0; token + kSimilarBlockTokens <= tokens.size(); token += kSimilarBlockTokens) {
      claims_.push_back({hash_at(tokens, token), ino, first_token + token, owner});
    }
  }
  void remove(uint64_t ino) {
    std::erase_if(claims_, [&](const Claim& claim) { return claim.ino == ino; });
  }
  std::vector<Similar> find(const Tokens& query, unsigned most_distance,
                            const SimilarIndex::Excluded& excluded, size_t most_results) const {
    std::vector<Similar> found;
    for (uint32_t token = 0; token + kSimilarBlockTokens <= query.size(); token += kSimilarBlockTokens) {
      const uint64_t hash = hash_at(query, token);
      for (const Claim& claim : claims_) {
        const unsigned distance = hamming_distance(claim.hash, hash);
        if (distance > most_distance || (excluded && excluded(claim.owner))) continue;
        found.push_back({.ino = claim.ino,
                         .query_token = token,
                         .token = claim.token,
                         .distance = static_cast<uint8_t>(distance),
                         .owner = claim.owner});
      }
    }
    std::ranges::sort(found, {}, [](const Similar& one) {
      return std::tuple(one.distance, one.query_token, one.ino, one.token, one.owner);
    });
    if (found.size() > most_results) found.resize(most_results);
    return found;
  }
  size_t blocks() const {
    std::set<uint64_t> hashes;
    for (const Claim& claim : claims_) hashes.insert(claim.hash);
    return hashes.size();
  }
  size_t claims() const { return claims_.size(); }

 private:
  std::vector<Claim> claims_;
};

TEST(SimilarIndexTest, AnEmptyIndexAndAShortQueryFindNothing) {
  SimilarIndex index;
  std::mt19937_64 random(1);
  EXPECT_TRUE(index.find(random_tokens(random, 64), 16, {}, 10).found.empty());
  const Tokens tokens = random_tokens(random, 40);
  index.insert(1, 1, tokens, 0);
  EXPECT_EQ(index.blocks(), 2u);
  EXPECT_TRUE(index.find(std::span(tokens).first(15), 16, {}, 10).found.empty());
  EXPECT_TRUE(index.find(tokens, 16, {}, 0).found.empty());
}

TEST(SimilarIndexTest, ABlockIsFoundAtItsPlaceWithItsConfidence) {
  SimilarIndex index;
  std::mt19937_64 random(2);
  const Tokens tokens = random_tokens(random, 48);
  index.insert(7, 3, tokens, 160);
  Tokens query = random_tokens(random, 16);
  query.insert(query.end(), tokens.begin() + 32, tokens.end());
  const SimilarAnswer answer = index.find(query, 8, {}, 10);
  ASSERT_EQ(answer.found.size(), 1u);
  EXPECT_EQ(answer.found[0], (Similar{.ino = 7, .query_token = 16, .token = 192, .distance = 0, .owner = 3}));
  EXPECT_EQ(answer.found[0].confidence(), 1);
  EXPECT_EQ((Similar{.distance = 8}).confidence(), 0.875);
}

TEST(SimilarIndexTest, AnEntryThatGoesLeavesTheOthersTheSharedBlock) {
  SimilarIndex index;
  std::mt19937_64 random(3);
  const Tokens shared = random_tokens(random, 16);
  index.insert(1, 1, shared, 0);
  index.insert(2, 2, shared, 0);
  index.insert(1, 1, random_tokens(random, 16), 16);
  index.remove(1);
  EXPECT_EQ(index.blocks(), 1u);
  EXPECT_EQ(index.find(shared, 0, {}, 10).found.at(0).ino, 2u);
  EXPECT_TRUE(index
                  .find(
                      shared, 0, [](OwnerNumber owner) { return owner == 2; }, 10)
                  .found.empty());
  index.remove(2);
  index.remove(2);
  EXPECT_EQ(index.blocks(), 0u);
}

class EachDistance : public testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(SimilarIndexTest, EachDistance, testing::Range(0u, SimilarIndex::kMostDistance + 1));

TEST_P(EachDistance, FindsWhatAScanFinds) {
  for (const size_t blocks : {100u, 4'000u, 20'000u}) {  // 8, 10 and 12 bits of a chunk
    Clusters clusters(blocks + GetParam(), blocks / 20);
    SimilarIndex index;
    NaiveIndex naive;
    Tokens kept;
    for (uint64_t ino = 1; ino <= blocks / 20; ++ino) {
      const Tokens tokens = clusters.blocks(20);
      index.insert(ino, kNoOwner, tokens, 0);
      naive.insert(ino, kNoOwner, tokens, 0);
      if (ino == 3) kept = tokens;
    }
    Tokens query = clusters.blocks(20);
    query.insert(query.end(), kept.begin(), kept.end());
    const SimilarAnswer answer = index.find(query, GetParam(), {}, kNoLimit);
    EXPECT_EQ(answer.found, naive.find(query, GetParam(), {}, kNoLimit));
    EXPECT_EQ(answer.truncated, 0u);
    EXPECT_GT(answer.found.size(), GetParam() >= 8 ? 10u : 0u);  // else it compares nothing with nothing
  }
}

TEST(SimilarIndexTest, AgreesWithANaiveIndexUnderAHundredThousandOperations) {
#ifdef SANITIZED_ALLOCATOR  // takes longer, and the index has had each of its entries several times by then
  constexpr int kOperations = 25'000;
#else
  constexpr int kOperations = 100'000;
#endif
  Clusters clusters(4, 300);
  std::mt19937_64& random = clusters.random();
  SimilarIndex index;
  NaiveIndex naive;
  uint64_t found = 0;
  for (int operation = 0; operation < kOperations; ++operation) {
    const uint64_t ino = random() % 4'000;
    const uint64_t kind = random() % 1000;
    if (kind < 550) {
      const auto owner = static_cast<OwnerNumber>(ino % 10);
      const auto first = static_cast<uint32_t>(random() % 1000);
      Tokens tokens = clusters.blocks(random() % 12);
      tokens.resize(tokens.size() + random() % 16);
      index.insert(ino, owner, tokens, first);
      naive.insert(ino, owner, tokens, first);
    } else if (kind < 980) {
      index.remove(ino);
      naive.remove(ino);
    } else {
      const Tokens query = clusters.blocks(1 + random() % 4);
      const auto most_distance = static_cast<unsigned>(random() % 17);
      const size_t most_results = random() % 2 == 0 ? 1 + random() % 20 : kNoLimit;
      SimilarIndex::Excluded excluded;
      if (random() % 2 == 0) excluded = [out = random() % 10](OwnerNumber owner) { return owner == out; };
      const SimilarAnswer answer = index.find(query, most_distance, excluded, most_results);
      ASSERT_EQ(answer.found, naive.find(query, most_distance, excluded, most_results)) << operation;
      ASSERT_EQ(answer.truncated, 0u);
      ASSERT_EQ(index.claims(), naive.claims());
      if (operation % 8 == 0) {
        ASSERT_EQ(index.blocks(), naive.blocks());
      }
      found += answer.found.size();
    }
  }
  EXPECT_GT(found, kOperations / 10u);
  for (uint64_t ino = 0; ino < 4'000; ++ino) index.remove(ino);
  EXPECT_EQ(index.blocks(), 0u);
  EXPECT_EQ(index.claims(), 0u);
}

TEST(SimilarIndexTest, AMillionClaimsOnABlockCostAQueryNoMillion) {
  SimilarIndex index;
  std::mt19937_64 random(5);
  const Tokens common = random_tokens(random, kSimilarBlockTokens);
  for (uint64_t ino = 1; ino <= 1'000'000; ++ino) index.insert(ino, ino % 2 == 0 ? 1 : 2, common, 0);
  const SimilarAnswer answer = index.find(
      common, 8, [](OwnerNumber owner) { return owner == 1; }, kNoLimit);
  EXPECT_EQ(answer.found.size(), SimilarIndex::kMostClaims / 2);  // the latest, and of them the other owner's
  EXPECT_EQ(answer.truncated, 1u);
  EXPECT_LT(answer.steps, 10'000u);
  for (uint64_t ino = 1; ino <= 1'000'000; ++ino) index.remove(ino);  // nor the removal of each
  EXPECT_EQ(index.blocks(), 0u);
}

TEST(SimilarIndexTest, ACommonBlockHidesNoOther) {
  SimilarIndex index;
  std::mt19937_64 random(8);
  const Tokens common = random_tokens(random, kSimilarBlockTokens);
  Tokens variant = common;
  while (hash_at(variant, 0) == hash_at(common, 0)) variant[0] = static_cast<uint32_t>(random() % 100'000);
  for (uint64_t ino = 2; ino <= 2 + SimilarIndex::kMostClaims; ++ino) index.insert(ino, kNoOwner, common, 0);
  index.insert(1, kNoOwner, variant, 0);
  const SimilarAnswer answer = index.find(common, SimilarIndex::kMostDistance, {}, kNoLimit);
  EXPECT_EQ(answer.found.size(), SimilarIndex::kMostClaims + 1);
  EXPECT_EQ(answer.found.back().ino, 1u);
  EXPECT_EQ(answer.truncated, 1u);
}

// Variants of one block with up to two tokens changed: many of them have a chunk in common.
TEST(SimilarIndexTest, NearDuplicatesWithoutEndAreRefusedAndBoundAQuery) {
  SimilarIndex index;
  std::mt19937_64 random(6);
  Tokens block = random_tokens(random, kSimilarBlockTokens);
  const Tokens first = block;
  const Tokens other = random_tokens(random, kSimilarBlockTokens);
  index.insert(1, kNoOwner, first, 0);
  index.insert(2, kNoOwner, other, 0);
  uint64_t ino = 2, refused = 0;
  for (; ino < 200'000; ++ino) {
    block = first;
    block[random() % block.size()] = static_cast<uint32_t>(random());
    block[random() % block.size()] = static_cast<uint32_t>(random());
    refused += !index.insert(ino + 1, kNoOwner, block, 0);
  }
  EXPECT_GT(refused, 1'000u);
  EXPECT_GT(index.blocks(), SimilarIndex::kMostInBucket);

  Tokens query;
  for (int i = 0; i < 500; ++i) query.insert(query.end(), first.begin(), first.end());
  query.insert(query.end(), other.begin(), other.end());
  const SimilarAnswer answer = index.find(query, 16, {}, 1000);
  EXPECT_LE(answer.steps, SimilarIndex::kMostSteps);
  EXPECT_GT(answer.truncated, 400u);
  // The block that is not truncated has its answer all the same.
  EXPECT_TRUE(std::ranges::any_of(answer.found, [](const Similar& similar) {
    return similar.query_token == 500 * kSimilarBlockTokens && similar.ino == 2 && similar.distance == 0;
  }));

  const SimilarAnswer single = index.find(first, 8, {}, 10);
  EXPECT_EQ(single.found.at(0), (Similar{.ino = 1}));
  for (; ino > 0; --ino) index.remove(ino);
  EXPECT_EQ(index.blocks(), 0u);
}

uint64_t allocated_bytes() {
#ifdef SANITIZED_ALLOCATOR
  return __sanitizer_get_current_allocated_bytes();
#else
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
#endif
}

TEST(SimilarIndexTest, SaysWhatMemoryItTakes) {
  std::mt19937_64 random(7);
  for (const size_t entries : {0u, 30u, 300u, 3'000u}) {
    std::vector<Tokens> tokens;
    for (size_t i = 0; i < entries; ++i) tokens.push_back(random_tokens(random, 64 * kSimilarBlockTokens));
    const uint64_t before = allocated_bytes();
    auto index = std::make_unique<SimilarIndex>();
    for (uint64_t ino = 0; ino < entries; ++ino) index->insert(ino, kNoOwner, tokens[ino], 0);
    auto taken = static_cast<double>(allocated_bytes() - before);
    EXPECT_NEAR(static_cast<double>(index->memory_bytes()) / taken, 1, 0.2) << entries;
    for (uint64_t ino = 0; ino < entries; ++ino) {
      if (ino % 8 != 0) index->remove(ino);
    }
    taken = static_cast<double>(allocated_bytes() - before);
    EXPECT_NEAR(static_cast<double>(index->memory_bytes()) / taken, 1, 0.2) << entries;
  }
}

}  // namespace kvcachefs::similar_index_test
