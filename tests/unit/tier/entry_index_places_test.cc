// Entries that follow others in an EntryIndex: they have a place as long as what precedes them is there, and
// the index keeps nothing for those that have none.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

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
  void store_for(uid_t user, const std::string& name, const std::vector<uint32_t>& numbers,
                 const std::string& parent) {
    store(name);
    ASSERT_EQ(::fchownat(root(), name.c_str(), user, 0, 0), 0);
    ASSERT_EQ(::fchmodat(root(), name.c_str(), 0644, 0), 0);
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

TEST_F(EntryIndexPlacesTest, FollowersGoWhereTheirParentGoes) {
  store_of("root", {1}, "");
  store_of("same", {1, 2}, "");  // it holds what next holds, and is not followed
  store_of("next", {2}, "root");
  store_of("last", {3}, "next");
  ASSERT_EQ(indexed_blocks(), 3u);
  set("next", "tokens", bytes_of(blocks({4})));
  EXPECT_EQ(indexed_blocks(), 4u);
  EXPECT_EQ(match(blocks({1, 4, 3})).size(), 3u);
  EXPECT_EQ(match(blocks({1, 2, 3})), Names{"same"});
  ASSERT_TRUE(tree_->rename(root(), "next", root(), "other", 0));
  EXPECT_EQ(indexed_blocks(), 3u);
  EXPECT_EQ(match(blocks({1, 4, 3})).size(), 2u) << "none has the name that the last follows";
  ASSERT_TRUE(tree_->rename(root(), "other", root(), "next", 0));
  EXPECT_EQ(match(blocks({1, 4, 3})).size(), 3u);
}

// Entries of one name, of which others follow one.
TEST_F(EntryIndexPlacesTest, OneOfThatNameIsLeft) {
  store_of("r.1", {1}, "");
  store_of("r.2", {2}, "");
  store_of("b", {3}, "r");
  ASSERT_EQ(match(blocks({1, 3})), (Names{"r.1", "b"}));
  remove("r.1");
  EXPECT_EQ(match(blocks({2, 3})), (Names{"r.2", "b"}));
  remove("r.2");
  EXPECT_EQ(indexed_blocks(), 0u);
}

TEST_F(EntryIndexPlacesTest, AnEntryStaysWithTheParentThatItHas) {
  store_for(2, "r.2", {2}, "");
  store_for(3, "b", {3}, "r");
  ASSERT_EQ(match(blocks({2, 3})), (Names{"r.2", "b"}));
  store_for(1, "r.1", {1}, "");
  touch("b");
  EXPECT_EQ(match(blocks({2, 3})), (Names{"r.2", "b"})) << "another user's of that name has come";
  store_for(3, "r.3", {4}, "");
  EXPECT_EQ(match(blocks({4, 3})), (Names{"r.3", "b"})) << "its own user's";
}

// Or two users could prove which tokens a third one's private entry has.
TEST_F(EntryIndexPlacesTest, AnotherOfThatNameStandsInForNone) {
  store_for(2, "sec.1", {7, 8}, "");
  ASSERT_EQ(::fchmodat(root(), "sec.1", 0600, 0), 0);
  touch("sec.1");
  store_for(3, "b", {9}, "sec");
  (void)indexed_blocks();
  store_for(1, "sec.2", {7, 8}, "");
  (void)indexed_blocks();
  EntryIndex::Asker third = asker();
  third.whose_is = [](const PrefixTree::Access& access) {
    return (access.mode & S_IROTH) != 0 ? PrefixTree::Whose::kAnothers : PrefixTree::Whose::kUnreadable;
  };
  Names names;
  for (const auto& piece : index_->match("", blocks({7, 8, 9}), third)) names.push_back(piece.entry.name);
  EXPECT_EQ(names, Names{"sec.2"});
}

// Each of two entries may follow the other, of its own user, or else another user's.
TEST_F(EntryIndexPlacesTest, NoChangeIsFollowedForEver) {
  store_for(1, "g.1", {1}, "");
  store_for(1, "k.1", {2}, "");
  store_for(2, "k.2", {3}, "g");
  (void)indexed_blocks();
  store_for(2, "g.2", {4}, "k");
  for (int turn = 0; turn < 20; ++turn) {
    touch(turn % 2 == 0 ? "k.2" : "g.2");
    int steps = 0;
    while (index_->step() && steps < 1000) ++steps;
    ASSERT_LT(steps, 1000);
    EXPECT_LE(index_->usage().blocks, 4u);
  }
}

TEST_F(EntryIndexPlacesTest, FilesInAClosedDirectoryHideNone) {
  ASSERT_TRUE(arena_->resize(uint64_t{256} << 20));
  store_of("open", {1, 1000}, "");
  for (uint32_t i = 0; i < 300; ++i) store_of("closed" + std::to_string(i), {1, i}, "");
  const auto look = [this](const std::string& name) {
    return name.starts_with("closed") ? fail(EACCES) : look_(name);
  };
  const auto pieces = index_->match("", blocks({1, 2000}), asker_with(look));
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].entry.name, "open");
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
  EXPECT_EQ(indexed_blocks(), 1u);
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
