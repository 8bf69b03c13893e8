#include "tests/support/entry_index_test.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace kvcachefs::test {

TEST_F(EntryIndexTest, AnEntryWithoutMetadataIsNotIndexed) {
  store("plain");
  EXPECT_EQ(index_->waiting(), 0u);
  EXPECT_EQ(index_->usage().entries, 0u);
  set("plain", "priority", "3");
  EXPECT_EQ(index_->waiting(), 0u);
}

TEST_F(EntryIndexTest, AStepReadsWhatHasChanged) {
  store("e");
  set("e", "tokens", bytes_of(blocks({1, 2})));
  EXPECT_GT(index_->waiting(), 0u);
  while (index_->step()) {
  }
  EXPECT_EQ(index_->waiting(), 0u);
  EXPECT_EQ(index_->usage().entries, 1u);
  EXPECT_EQ(index_->usage().blocks, 2u);
  EXPECT_GT(index_->usage().bytes, 0u);
  EXPECT_EQ(match(blocks({1, 2, 3})), std::vector<std::string>{"e"});
}

TEST_F(EntryIndexTest, AnEntryWaitsOnceHoweverOftenItChanges) {
  for (const char* name : {"a", "b"}) store(name);
  for (int i = 0; i < 100; ++i)
    for (const char* name : {"a", "b"}) set(name, "layer", std::to_string(i));
  EXPECT_EQ(index_->waiting(), 2u);
}

TEST_F(EntryIndexTest, AnEntryIsNotReadAgainForOneOfAnotherModel) {
  store("waits");
  set("waits", "model", "one");
  set("waits", "parent", "k");
  set("waits", "tokens", bytes_of(blocks({2})));
  store("k");
  set("k", "tokens", bytes_of(blocks({1})));
  while (index_->step()) {
  }
  EXPECT_EQ(match(blocks({1, 2})), std::vector<std::string>{"k"});
  set("k", "model", "one");
  while (index_->step()) {
  }
  EXPECT_EQ(match(blocks({1, 2}), "one"), (std::vector<std::string>{"k", "waits"}));
}

TEST_F(EntryIndexTest, AllOfItsMemoryIsGivenBack) {
  for (int i = 0; i < 50; ++i) {
    const std::string name = "e" + std::to_string(i);
    store(name);
    set(name, "model", "m" + std::to_string(i % 7));
    set(name, "agent", "a" + std::to_string(i));
    if (i > 0) set(name, "parent", "e" + std::to_string(i - 1));
    set(name, "tokens", bytes_of(blocks({static_cast<uint32_t>(i)})));
  }
  while (index_->step()) {
  }
  EXPECT_EQ(index_->usage().entries, 50u);
  for (int i = 0; i < 50; ++i) ASSERT_TRUE(tree_->remove(root(), ("e" + std::to_string(i)).c_str(), false));
  while (index_->step()) {
  }
  EXPECT_EQ(index_->usage().entries, 0u);
  EXPECT_EQ(index_->usage().blocks, 0u);
  EXPECT_EQ(index_->usage().bytes, 0u);
}

TEST_F(EntryIndexTest, AQueryThatIsAnsweredFromLessThanAllSaysSo) {
  ASSERT_TRUE(arena_->resize(uint64_t{1} << 30));
  for (int i = 0; i < 40'000; ++i) {
    const std::string name = "e" + std::to_string(i);
    store(name);
    set(name, "agent", "a");
  }
  (void)match(blocks({1}));
  EXPECT_EQ(index_->cut_short(), 1u);
  EXPECT_GT(index_->waiting(), 0u);
  while (index_->step()) {
  }
  (void)match(blocks({1}));
  EXPECT_EQ(index_->cut_short(), 1u);
}

TEST_F(EntryIndexTest, WhatHasNoRoomIsRefusedAndCounted) {
  const Tokens many(16'000, 7);
  int stored = 0;
  for (; index_->usage().refused == 0 && stored < 100; ++stored) {
    const std::string name = "e" + std::to_string(stored);
    store(name);
    Tokens tokens = many;
    tokens[0] = static_cast<uint32_t>(stored);
    set(name, "tokens", bytes_of(tokens));
    while (index_->step()) {
    }
  }
  EXPECT_LT(stored, 100);
  EXPECT_EQ(index_->usage().missing, 1u);
  EXPECT_LE(index_->usage().bytes, uint64_t{1} << 20) << "the least of a small pool";
  EXPECT_EQ(arena_->usage().index_bytes, index_->usage().bytes) << "it counts as the pool's memory";
  // It comes to the index when others have gone.
  const std::string last = "e" + std::to_string(stored - 1);
  Tokens tokens = many;
  tokens[0] = static_cast<uint32_t>(stored - 1);
  EXPECT_TRUE(match(tokens).empty());
  for (int i = 0; i < stored / 2; ++i)
    ASSERT_TRUE(tree_->remove(root(), ("e" + std::to_string(i)).c_str(), false));
  while (index_->step()) {
  }
  EXPECT_EQ(match(tokens), std::vector<std::string>{last});
  EXPECT_EQ(index_->usage().missing, 0u);
}

TEST(MissingEntries, OfManyItIsKnownThatThereAreMoreUntilAllWereSought) {
  MissingEntries missing;
  for (uint64_t ino = 0; ino < 2 * MissingEntries::kMost; ++ino) missing.add(ino);
  EXPECT_EQ(missing.count(), MissingEntries::kMost + 1);
  for (uint64_t ino = 0; ino < MissingEntries::kMost; ++ino) missing.remove(ino);
  EXPECT_EQ(missing.count(), 1u);
  missing.seeking_begins();
  EXPECT_EQ(missing.count(), 1u);
  missing.add(7);
  missing.seeking_ended();
  EXPECT_EQ(missing.count(), 1u);
  missing.remove(7);
  EXPECT_EQ(missing.count(), 0u);
}

TEST_F(EntryIndexTest, WhatNeverHasRoomIsNotSoughtForEver) {
  for (int i = 0; i < 12; ++i) {
    const std::string name = "e" + std::to_string(i);
    store(name);
    set(name, "tokens", bytes_of(Tokens(16'000, static_cast<uint32_t>(i))));
  }
  store("large");
  const std::string part = bytes_of(Tokens(16'384, 99));
  for (const char* key : {"tokens.5", "tokens.4", "tokens.3", "tokens.2", "tokens.1", "tokens"})
    set("large", key, part);
  int steps = 0;
  while (index_->step() && ++steps < 10'000) {
  }
  EXPECT_LT(steps, 10'000);
  const uint64_t refused = index_->usage().refused;
  EXPECT_GT(refused, 0u);
  const uint64_t missing = index_->usage().missing;
  EXPECT_GT(missing, 0u);
  for (int i = 0; i < 1000; ++i) (void)index_->step();
  EXPECT_EQ(index_->usage().refused, refused);
  EXPECT_EQ(index_->usage().missing, missing);
  ASSERT_TRUE(tree_->remove(root(), "large", false));
  while (index_->step()) {
  }
  EXPECT_EQ(index_->usage().missing, missing - 1) << "what has gone is not missing";
}

TEST_F(EntryIndexTest, AUserWithHisShareOfItLeavesOthersTheirs) {
  constexpr uid_t kGreedy = 1000;
  entries_.shares().set_share(25);
  const auto store_of = [&](uid_t uid, const std::string& name, uint32_t first) {
    store(name);
    ASSERT_EQ(::fchownat(root(), name.c_str(), uid, 0, 0), 0);
    Tokens tokens(4'000, 7);
    tokens[0] = first;
    set(name, "pre_rope", "0");
    set(name, "tokens", bytes_of(tokens));
    while (index_->step()) {
    }
  };
  for (uint32_t i = 0; i < 60; ++i) store_of(kGreedy, "greedy" + std::to_string(i), i);
  const auto full = index_->usage();
  EXPECT_GT(full.refused, 0u);
  EXPECT_GT(full.entries, 10u);
  EXPECT_LE(full.bytes, (uint64_t{1} << 20) / 3) << "of a small pool the index has 1 MiB";
  for (int i = 0; i < 1000; ++i) (void)index_->step();
  EXPECT_EQ(index_->usage().refused, full.refused) << "what has no room is not sought for ever";
  store_of(1001, "modest", 1'000'000);
  EXPECT_EQ(index_->usage().entries, full.entries + 1);
  // What was refused comes when some of his have gone, or when his share has grown.
  const auto at = [&](uint32_t i) {
    Tokens tokens(16, 7);
    tokens[0] = i;
    return match(tokens);
  };
  EXPECT_TRUE(at(59).empty());
  for (uint32_t i = 0; i < 10; ++i)
    ASSERT_TRUE(tree_->remove(root(), ("greedy" + std::to_string(i)).c_str(), false));
  while (index_->step()) {
  }
  EXPECT_GE(index_->usage().entries, full.entries - 4);
  entries_.shares().set_share(0);
  while (index_->step()) {
  }
  EXPECT_EQ(index_->usage().entries, 51u);
  EXPECT_EQ(at(59), std::vector<std::string>{"greedy59"});
}

TEST_F(EntryIndexTest, OneThatTakesMoreThanTheRestComesWhenTheRestHasGone) {
  store("small");
  set("small", "pre_rope", "0");
  set("small", "tokens", bytes_of(Tokens(16'000, 1)));
  store("large");
  const std::string part = bytes_of(Tokens(16'384, 99));
  for (const char* key : {"tokens.1", "tokens"}) set("large", key, part);
  set("large", "pre_rope", "1");
  while (index_->step()) {
  }
  ASSERT_EQ(index_->usage().entries, 2u);
  set("large", "tokens.2", part);
  set("large", "tokens.3", bytes_of(Tokens(12'500, 99)));
  while (index_->step()) {
  }
  ASSERT_EQ(index_->usage().entries, 1u) << "it takes 15/16 of the index";
  ASSERT_TRUE(tree_->remove(root(), "small", false));
  while (index_->step()) {
  }
  EXPECT_EQ(index_->usage().entries, 1u);
  EXPECT_EQ(match(Tokens(kTokens, 99)), std::vector<std::string>{"large"});
}

// A caller may be kept from all that he asks for, and the evictor needs the index meanwhile.
TEST_F(EntryIndexTest, OthersHaveTheIndexWhileManyEntriesAreLookedAt) {
  constexpr int kEntries = 1500;
  for (int i = 0; i < kEntries; ++i) {
    store("e" + std::to_string(i));
    set("e" + std::to_string(i), "agent", "a");
  }
  while (index_->step()) {
  }
  std::atomic<int> looks = 0;
  int looks_then = 0;
  const uint64_t first = ino("e0");
  std::thread other;
  const EntryIndex::Filter filter(Attribute::kAgent, "a");
  (void)listed({&filter, 1}, asker_with([&](const std::string&) -> Result<struct stat> {
                 if (looks++ == 0) {
                   other = std::thread([&] {
                     (void)index_->leaf_below(first);
                     looks_then = looks;
                   });
                 }
                 ::usleep(500);
                 return fail(EACCES);
               }));
  other.join();
  EXPECT_EQ(looks, kEntries);
  EXPECT_LT(looks_then, kEntries / 2);
}

TEST_F(EntryIndexTest, OfALongChainTheEvictorGetsOneOnTheWay) {
  constexpr uint32_t kLinks = EntryIndex::kMostLinks + 100;
  ASSERT_TRUE(arena_->resize(uint64_t{1} << 30));
  const auto name = [](uint32_t number) { return "e" + std::to_string(number); };
  for (uint32_t i = 0; i < kLinks; ++i) {
    store(name(i));
    if (i > 0) set(name(i), "parent", name(i - 1));
    set(name(i), "tokens", bytes_of(blocks({i})));
  }
  while (index_->step()) {
  }
  EXPECT_EQ(index_->leaf_below(ino(name(0))), ino(name(EntryIndex::kMostLinks)));
  EXPECT_EQ(index_->leaf_below(ino(name(kLinks - 10))), ino(name(kLinks - 1)));
}

// Any user may call his entries as another's are called.
TEST_F(EntryIndexTest, AnEntryFollowsOneOfItsUsers) {
  const auto store_of = [&](uid_t uid, const std::string& name, uint32_t block, const std::string& parent) {
    store(name);
    ASSERT_EQ(::fchownat(root(), name.c_str(), uid, 0, 0), 0);
    if (!parent.empty()) set(name, "parent", parent);
    set(name, "tokens", bytes_of(blocks({block})));
  };
  using Names = std::vector<std::string>;
  store_of(1, "h.another", 7, "");
  store_of(2, "h.own", 1, "");
  store_of(2, "next", 2, "h");
  EXPECT_EQ(match(blocks({1, 2})), (Names{"h.own", "next"}));
  store_of(4, "late", 3, "h");
  EXPECT_EQ(match(blocks({7, 3})), (Names{"h.another", "late"})) << "who has none follows another's";
  store_of(4, "h.lately", 9, "");
  EXPECT_EQ(match(blocks({9, 3})), (Names{"h.lately", "late"})) << "until his own comes";
  store_of(5, "h", 10, "h");
  EXPECT_EQ(match(blocks({7, 10})), (Names{"h.another", "h"}));
  EXPECT_EQ(index_->waiting(), 0u) << "it is not read again for its own sake";
}

// Names can be made so, because the checksum is none against those who want it (XXH3).
TEST_F(EntryIndexTest, ANameMayHaveTheChecksumOfItsOwnBeginning) {
  const std::string name = "ka0ff1a59." + std::string(149, 'a') +
                           "\061\310\237\176\311\331\170\163\123\142\046\266\315\146\353\063"
                           "\101\160\107\120\156\120\112\131\377\216\362\126\325\066\174\274";
  const auto checksum = [](std::string_view text) { return checksum_of(std::as_bytes(std::span(text))); };
  ASSERT_EQ(checksum(name), checksum("ka0ff1a59"));
  store(name);
  set(name, "tokens", bytes_of(blocks({1})));
  EXPECT_EQ(match(blocks({1})), std::vector<std::string>{name});
  set(name, "tokens", bytes_of(blocks({2})));
  EXPECT_EQ(match(blocks({2})), std::vector<std::string>{name});
}

TEST_F(EntryIndexTest, WhatHasAnotherNameByNowIsFoundThoughTheOldOneIsNotForTheCaller) {
  store("old");
  set("old", "tokens", bytes_of(blocks({1})));
  std::string closed = "old";
  const EntryIndex::Look look = [&](const std::string& name) {
    return name == closed ? fail(EACCES) : look_(name);
  };
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& piece : index_->match("", blocks({1}), asker_with(look)))
      found.push_back(piece.entry.name);
    return found;
  };
  EXPECT_EQ(names(), std::vector<std::string>());
  // The index does not hear of it, as if it were a directory above the entry.
  ASSERT_EQ(::renameat(root(), "old", root(), "new"), 0);
  EXPECT_EQ(names(), std::vector<std::string>{"new"});
  ASSERT_EQ(::symlinkat("new", root(), "old"), 0);
  EXPECT_EQ(names(), std::vector<std::string>{"new"});
  closed = "new";
  EXPECT_EQ(names(), std::vector<std::string>());
}

// Those of all that an answer names would take gigabytes.
TEST_F(EntryIndexTest, AListIsWithoutTokens) {
  store("e");
  set("e", "tokens", bytes_of(blocks({1})));
  set("e", "agent", "a");
  const std::vector<EntryIndex::Filter> filters = {{Attribute::kAgent, "a"}};
  const auto found = listed(filters, asker());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].second[Attribute::kAgent], "a");
  EXPECT_EQ(found[0].second.tokens.capacity(), 0u);
}

}  // namespace kvcachefs::test
