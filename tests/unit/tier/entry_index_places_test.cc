// Entries that follow others in an EntryIndex: they have a place as long as what precedes them is there, and
// the index keeps nothing for those that have none.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/support/entry_index_test.h"

namespace kvcachefs::test {

class EntryIndexPlacesTest : public EntryIndexTest {
 protected:
  using Names = std::vector<std::string>;
  void store_of(const std::string& name, const std::vector<uint32_t>& numbers, const std::string& parent) {
    store(name);
    if (!parent.empty()) set(name, "parent", parent);
    set(name, "tokens", bytes_of(blocks(numbers)));
  }
  void remove(const std::string& name) { ASSERT_TRUE(tree_->remove(root(), name.c_str(), false)); }
  void touch(const std::string& name) { set(name, "agent", "a" + std::to_string(++touches_)); }
  // The blocks that the index has of all entries.
  uint64_t indexed_blocks() {
    while (index_->step()) continue;
    return index_->usage().blocks;
  }

 private:
  int touches_ = 0;
};

TEST_F(EntryIndexPlacesTest, TwoThatFollowEachOtherFillNothing) {
  store_of("a", {1, 2}, "");
  store_of("b", {3, 4}, "a");
  ASSERT_EQ(match(blocks({1, 2, 3, 4})), (Names{"a", "b"}));
  ASSERT_EQ(indexed_blocks(), 4u);
  set("a", "parent", "b");
  for (int turn = 0; turn < 50; ++turn) {
    touch(turn % 2 == 0 ? "a" : "b");
    ASSERT_EQ(indexed_blocks(), 0u) << "turn " << turn;
  }
  EXPECT_EQ(match(blocks({1, 2, 3, 4})), Names());
  set("a", "parent", "");
  EXPECT_EQ(match(blocks({1, 2, 3, 4})), (Names{"a", "b"}));
}

TEST_F(EntryIndexPlacesTest, OneThatFollowsItselfFillsNothing) {
  store_of("a", {1, 2}, "");
  ASSERT_EQ(indexed_blocks(), 2u);
  set("a", "parent", "a");
  for (int turn = 0; turn < 3; ++turn) {
    EXPECT_EQ(indexed_blocks(), 0u);
    touch("a");
  }
}

TEST_F(EntryIndexPlacesTest, FollowersComeBackWithTheEntryThatTheyFollow) {
  constexpr uint32_t kFollowers = 1000;  // more than lose their places at a time
  ASSERT_TRUE(arena_->resize(uint64_t{256} << 20));
  store_of("root", {1}, "");
  for (uint32_t i = 0; i < kFollowers; ++i) store_of("f" + std::to_string(i), {2, i}, "root");
  store_of("last", {5}, "f7");
  ASSERT_EQ(indexed_blocks(), kFollowers + 3);
  remove("root");
  EXPECT_EQ(indexed_blocks(), 0u) << "nothing precedes them";
  EXPECT_EQ(index_->usage().entries, kFollowers + 1);
  EXPECT_EQ(match(blocks({1, 2, 7, 5})), Names());
  store_of("root", {3}, "");
  EXPECT_EQ(indexed_blocks(), kFollowers + 3);
  EXPECT_EQ(match(blocks({3, 2, 7, 5})), (Names{"root", "f7", "last"}));
}

TEST_F(EntryIndexPlacesTest, AnEntryThatIsReadAgainKeepsItsFollowersInPlace) {
  store_of("root", {1}, "");
  store_of("next", {2}, "root");
  store_of("last", {3}, "next");
  ASSERT_EQ(indexed_blocks(), 3u);
  for (const char* name : {"root", "next", "last", "root"}) {
    touch(name);
    EXPECT_EQ(match(blocks({1, 2, 3})), (Names{"root", "next", "last"})) << name;
  }
}

// Its content was made after those tokens.
TEST_F(EntryIndexPlacesTest, AnEntryDoesNotFollowAnotherToOtherTokens) {
  store_of("root", {1}, "");
  store_of("next", {2}, "root");
  store_of("last", {3}, "next");
  ASSERT_EQ(indexed_blocks(), 3u);
  set("next", "tokens", bytes_of(blocks({4})));
  EXPECT_EQ(match(blocks({1, 4, 3})), (Names{"root", "next"}));
  EXPECT_EQ(match(blocks({1, 2, 3})), Names{"root"});
  EXPECT_EQ(indexed_blocks(), 2u);
  touch("last");
  EXPECT_EQ(match(blocks({1, 4, 3})), (Names{"root", "next", "last"}));
}

TEST_F(EntryIndexPlacesTest, WhatHasChangedGoesBeforeFollowers) {
  std::vector<uint64_t> read;
  index_.emplace(
      *arena_, entries_, [] {},
      [&](const sys::Handle& entry, auto...) {
        read.push_back(entry.ino);
        if (read.size() == 4) store_of("fresh", {9}, "");  // those that follow wait since the root was read
      });
  for (const char* name : {"f1", "f2", "f3"}) store_of(name, {2}, "root");
  (void)indexed_blocks();
  store_of("root", {1}, "");
  EXPECT_EQ(indexed_blocks(), 3u);
  EXPECT_EQ(read, (std::vector<uint64_t>{ino("f1"), ino("f2"), ino("f3"), ino("root"), ino("fresh"),
                                         ino("f1"), ino("f2"), ino("f3")}));
}

// One with the same tokens is there, but it isn't the one that they follow.
TEST_F(EntryIndexPlacesTest, FollowersWaitForTheirOwn) {
  store_of("root", {1}, "");
  store_of("same", {1}, "");
  store_of("next", {2}, "root");
  ASSERT_EQ(indexed_blocks(), 2u);
  remove("root");
  EXPECT_EQ(match(blocks({1, 2})), Names{"same"});
  EXPECT_EQ(indexed_blocks(), 2u);
  store_of("root", {1}, "");
  EXPECT_EQ(match(blocks({1, 2})).size(), 2u);
  remove("root");
  remove("same");
  EXPECT_EQ(indexed_blocks(), 0u);
}

TEST_F(EntryIndexPlacesTest, InAFullIndexAnEntryThatIsReadAgainHasRoom) {
  constexpr uint32_t kMost = 100;
  const std::vector<uint32_t> many(1000, 9);
  uint32_t stored = 0;
  for (; index_->usage().refused == 0 && stored < kMost; ++stored) {
    std::vector<uint32_t> numbers = many;
    numbers[0] = stored;
    store_of("e" + std::to_string(stored), numbers, "");
    (void)indexed_blocks();
  }
  ASSERT_LT(stored, kMost) << "the index is not full";
  const uint64_t refused = index_->usage().refused, blocks = indexed_blocks();
  for (uint32_t i = 0; i + 1 < stored; ++i) {
    touch("e" + std::to_string(i));
    EXPECT_EQ(indexed_blocks(), blocks);
  }
  EXPECT_EQ(index_->usage().refused, refused);
}

// However entries follow one another, the index has no more blocks than they have, and none when they end.
TEST_F(EntryIndexPlacesTest, NoOrderOfChangesFillsTheIndex) {
  std::mt19937_64 random(7);
  constexpr uint32_t kEntries = 8;
  const auto name_of = [](uint64_t number) { return "e" + std::to_string(number); };
  std::map<std::string, size_t> blocks_of;
  const auto some_numbers = [&](const std::string& name) {
    std::vector<uint32_t> numbers(random() % 3 + 1);
    for (uint32_t& number : numbers) number = random() % 2;
    blocks_of[name] = numbers.size();
    return numbers;
  };
  for (int step = 0; step < 4000; ++step) {
    const std::string name = name_of(random() % kEntries), other = name_of(random() % kEntries);
    if (!blocks_of.contains(name)) {
      store_of(name, some_numbers(name), random() % 2 == 0 ? other : "");
    } else if (const uint64_t kind = random() % 8; kind == 0) {
      remove(name);
      blocks_of.erase(name);
    } else if (kind == 1 && name != other) {
      ASSERT_TRUE(tree_->rename(root(), name.c_str(), root(), other.c_str(), 0));
      blocks_of[other] = blocks_of[name];
      blocks_of.erase(name);
    } else if (kind == 2) {
      set(name, "tokens", bytes_of(blocks(some_numbers(name))));
    } else if (kind == 3) {
      touch(name);
    } else {
      set(name, "parent", kind == 4 ? "" : other);
    }
    if (random() % 3 == 0) continue;
    size_t most = 0;
    for (const auto& [each, count] : blocks_of) most += count;
    ASSERT_LE(indexed_blocks(), most) << "step " << step;
    // Without a gap, and by entries that are there.
    size_t at = 0;
    for (const auto& piece : index_->match("", blocks({0, 1, 0, 0, 1, 1}), asker())) {
      ASSERT_EQ(piece.first_token, at);
      ASSERT_TRUE(blocks_of.contains(piece.entry.name));
      at = piece.end_token;
    }
  }
  for (const auto& [name, count] : blocks_of) set(name, "parent", "");
  for (const auto& [name, count] : blocks_of) {
    const auto numbers = some_numbers(name);
    set(name, "tokens", bytes_of(blocks(numbers)));
    EXPECT_EQ(index_->match("", blocks(numbers), asker()).back().end_token, numbers.size() * kTokens);
  }
  for (const auto& [name, count] : blocks_of) remove(name);
  EXPECT_EQ(indexed_blocks(), 0u);
  EXPECT_EQ(arena_->index_bytes(), 0u);
}

}  // namespace kvcachefs::test
