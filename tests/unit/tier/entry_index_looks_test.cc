// A query of an EntryIndex: the entries that it looks at, and what it keeps from others meanwhile.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/entry_index_test.h"

namespace kvcachefs::test {

TEST_F(EntryIndexTest, NoLockIsHeldDuringALook) {
  Tokens tokens;
  for (uint32_t i = 0; i < 200; ++i) {
    store("e" + std::to_string(i));
    tokens = blocks(std::vector<uint32_t>(i + 1, 7));
    set("e" + std::to_string(i), "agent", "a");
    set("e" + std::to_string(i), "tokens", bytes_of(tokens));
  }
  const EntryIndex::Filter filter(Attribute::kAgent, "a");
  int looks = 0;
  const auto look = [&](const std::string&) -> Result<struct stat> {
    ++looks;
    std::thread([&] { (void)index_->leaf_below(ino("e0")); }).join();
    return fail(EACCES);
  };
  EXPECT_TRUE(index_->match("", tokens, asker_with(look)).empty());
  EXPECT_EQ(looks, 200);
  EXPECT_TRUE(listed({&filter, 1}, asker_with(look)).empty());
  EXPECT_EQ(looks, 400);
  const auto end_at_once = [&](const std::string& name) {
    ended_ = true;
    return look(name);
  };
  looks = 0;
  EXPECT_TRUE(index_->match("", tokens, asker_with(end_at_once)).empty());
  EXPECT_TRUE(listed({&filter, 1}, asker_with(end_at_once)).empty());
  EXPECT_LE(looks, 40);
}

TEST_F(EntryIndexTest, WhatIsFoundBeforeAQueryEndsIsItsAnswer) {
  Tokens tokens;
  for (uint32_t i = 0; i < 500; ++i) {
    store("e" + std::to_string(i));
    if (i > 0) set("e" + std::to_string(i), "parent", "e" + std::to_string(i - 1));
    set("e" + std::to_string(i), "tokens", bytes_of(blocks({i})));
    for (const uint32_t token : blocks({i})) tokens.push_back(token);
  }
  while (index_->step()) continue;  // a query waits for a tenth of a second of it
  EXPECT_EQ(match(tokens).size(), 500u);
  size_t looks = 0;
  const auto found = index_->match("", tokens, asker_with([&](const std::string& name) {
                                     if (++looks == 100) ended_ = true;
                                     return look_(name);
                                   }));
  EXPECT_GE(found.size(), 90u);
  EXPECT_LT(found.size(), 130u);
  EXPECT_TRUE(work_->is_cut());
}

// The time of an answer is not to tell whether a guess of private tokens is right.
TEST_F(EntryIndexTest, WhatTheCallerMayNotReadIsNotLookedAt) {
  for (const char* name : {"private", "public"}) {
    store(name);
    ASSERT_EQ(::fchmodat(root(), name, name == std::string("public") ? 0644 : 0600, 0), 0);
    set(name, "agent", "a");
    set(name, "pre_rope", "1");
    set(name, "tokens", bytes_of(blocks({1, 2})));
  }
  std::vector<std::string> looked_at;
  const auto asker = [&] {
    looked_at.clear();
    EntryIndex::Asker result = asker_with([&](const std::string& name) {
      looked_at.push_back(name);
      return look_(name);
    });
    result.whose_is = [](const PrefixTree::Access& access) {
      return (access.mode & 0004) != 0 ? PrefixTree::Whose::kAnothers : PrefixTree::Whose::kUnreadable;
    };
    return result;
  };
  const std::vector<std::string> expected = {"public"};
  EXPECT_EQ(index_->match("", blocks({1, 2}), asker()).size(), 1u);
  EXPECT_EQ(looked_at, expected);
  const EntryIndex::Filter filter(Attribute::kAgent, "a");
  EXPECT_EQ(listed({&filter, 1}, asker()).size(), 1u);
  EXPECT_EQ(looked_at, expected);
  EXPECT_EQ(index_->similar({.model = "", .tokens = blocks({1, 2})}, asker()).blocks.size(), 2u);
  EXPECT_EQ(looked_at, expected);
  for (const char* name : {"private", "public"}) set(name, "pre_rope", "0");
  EXPECT_EQ(index_->similar({.model = "", .tokens = blocks({1, 2})}, asker()).not_pre_rope, 2u);
  EXPECT_EQ(looked_at, expected);
}

TEST_F(EntryIndexTest, AQueryEndsWhereItsUserHasNoMemory) {
  Tokens tokens;
  constexpr uint32_t kEntries = 500;
  for (uint32_t i = 0; i < kEntries; ++i) {
    const std::string name = "e" + std::to_string(i);
    store(name);
    if (i > 0) set(name, "parent", "e" + std::to_string(i - 1));
    set(name, "agent", "a");
    set(name, "pre_rope", "1");
    set(name, "tokens", bytes_of(blocks({i})));
    for (const uint32_t token : blocks({i})) tokens.push_back(token);
  }
  while (index_->step()) continue;
  uint64_t charged = 0, most = 0;
  size_t looks = 0;
  const auto asker_with_bytes = [&](uint64_t bytes) {
    charged = looks = 0;
    most = bytes;
    EntryIndex::Asker asker = asker_with([&](const std::string& name) {
      ++looks;
      return look_(name);
    });
    work_.emplace([] {}, ended_,
                  [&](uint64_t more) {
                    if (charged + more > most) return false;
                    charged += more;
                    return true;
                  });
    return asker;
  };
  const EntryIndex::SimilarQuery similar = {
      .model = "", .tokens = tokens, .most_distance = 0, .most_results = kEntries};
  const EntryIndex::Filter filter(Attribute::kAgent, "a");
  EXPECT_EQ(index_->match("", tokens, asker_with_bytes(1 << 20)).size(), kEntries);
  EXPECT_GT(charged, kEntries * (sizeof(EntryIndex::Piece) + sizeof(EntryIndex::Found)));
  EXPECT_EQ(index_->similar(similar, asker_with_bytes(1 << 20)).blocks.size(), kEntries);
  EXPECT_GT(charged, kEntries * (sizeof(EntryIndex::SimilarBlockOf) + sizeof(EntryIndex::Found)));
  EXPECT_EQ(listed({&filter, 1}, asker_with_bytes(1 << 20)).size(), kEntries);
  EXPECT_GT(charged, kEntries * sizeof(uint64_t));

  (void)index_->match("", tokens, asker_with_bytes(128 << 10));
  EXPECT_LT(looks, kEntries / 2);
  EXPECT_TRUE(work_->is_cut());
  EXPECT_LT(index_->similar(similar, asker_with_bytes(128 << 10)).blocks.size(), kEntries / 2);
  EXPECT_TRUE(work_->is_cut());
  EXPECT_TRUE(listed({&filter, 1}, asker_with_bytes(1000)).empty());
  EXPECT_TRUE(work_->is_cut());
}

}  // namespace kvcachefs::test
