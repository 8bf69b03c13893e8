#include "tier/index/prefix_tree.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace kvcachefs::prefix_tree_test {

using Tokens = std::vector<uint32_t>;
constexpr size_t kBlock = 4;

using Use = PrefixTree::Use;
using Whose = PrefixTree::Whose;
Whose anothers(const PrefixTree::Access&) {
  return Whose::kAnothers;
}
Use any(uint64_t) {
  return Use::kUse;
}

std::vector<PrefixTree::Piece> match(const PrefixTree& tree, const Tokens& query,
                                     const PrefixTree::WhoseIs& whose_is,
                                     const std::function<Use(uint64_t)>& use_of) {
  bool left_out = true;
  auto pieces = tree.match(query, whose_is, use_of, left_out);
  EXPECT_FALSE(left_out);
  return pieces;
}

Tokens sequence(uint32_t first, size_t count) {
  Tokens tokens(count);
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

Tokens joined(Tokens one, const Tokens& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

// Each user's entries are runs of their own.
PrefixTree::Access access_of(uint64_t ino) {
  return {static_cast<uid_t>(ino * 0x9e37 % 5), 0, 0400};
}

// What the tree's answers are compared with: every entry with all tokens from the root on.
class Model {
 public:
  struct Known {
    Tokens path;  // in whole blocks
    size_t start = 0;
    PrefixTree::Member member = 0;
  };
  void insert(PrefixTree& tree, uint64_t ino, std::optional<uint64_t> after, const Tokens& tokens) {
    const Known* parent = after ? &entries_.at(*after) : nullptr;
    const auto member = tree.insert(ino, parent != nullptr ? tree.end_of(parent->member) : PrefixTree::kStart,
                                    tokens, access_of(ino));
    ASSERT_EQ(member.has_value(), tokens.size() >= kBlock);
    if (!member) return;
    Tokens path = joined(parent != nullptr ? parent->path : Tokens(), tokens);
    path.resize(path.size() - path.size() % kBlock);
    const size_t start = parent != nullptr ? parent->path.size() : 0;
    entries_[ino] = {std::move(path), start, *member};
  }
  // With it go those that start where no entry ends any more, and so on.
  void remove(PrefixTree& tree, uint64_t ino) {
    for (auto lost = entries_.find(ino); lost != entries_.end();) {
      tree.remove(lost->second.member);
      entries_.erase(lost);
      lost = std::ranges::find_if(entries_, [&](const auto& each) {
        return each.second.start > 0 && !is_held(each.second.path, each.second.start);
      });
    }
  }
  // Whether an entry holds the last block before there.
  bool is_held(const Tokens& path, size_t end) const {
    return std::ranges::any_of(entries_, [&](const auto& each) {
      const Known& known = each.second;
      return known.start < end && end <= known.path.size() &&
             std::equal(path.begin(), path.begin() + static_cast<ptrdiff_t>(end), known.path.begin());
    });
  }
  // So many tokens of the query does the entry hold, if it holds all from its start on.
  size_t end_of(uint64_t ino, const Tokens& query) const {
    const Tokens& path = entries_.at(ino).path;
    const auto differs = std::ranges::mismatch(path, query);
    const auto same = static_cast<size_t>(differs.in1 - path.begin());
    return same - same % kBlock;
  }
  size_t longest(const Tokens& query, const std::function<bool(uint64_t)>& usable) const {
    size_t at = 0;
    for (bool further = true; further;) {
      further = false;
      for (const auto& [ino, known] : entries_) {
        if (known.start > at || !usable(ino) || end_of(ino, query) <= at) continue;
        at = end_of(ino, query);
        further = true;
      }
    }
    return at;
  }
  uint64_t blocks() const {
    std::map<Tokens, bool> blocks;
    for (const auto& [ino, known] : entries_)
      for (size_t end = known.start + kBlock; end <= known.path.size(); end += kBlock)
        blocks[Tokens(known.path.begin(), known.path.begin() + static_cast<ptrdiff_t>(end))];
    return blocks.size();
  }
  const std::map<uint64_t, Known>& entries() const { return entries_; }

 private:
  std::map<uint64_t, Known> entries_;
};

TEST(PrefixTreeTest, AnEmptyTreeHoldsNothing) {
  const PrefixTree tree(kBlock);
  EXPECT_TRUE(match(tree, sequence(0, 16), anothers, any).empty());
  EXPECT_TRUE(match(tree, {}, anothers, any).empty());
  EXPECT_EQ(tree.blocks(), 0);
}

TEST(PrefixTreeTest, LessThanABlockIsNotTaken) {
  PrefixTree tree(kBlock);
  EXPECT_FALSE(tree.insert(1, PrefixTree::kStart, sequence(0, kBlock - 1), {}));
  ASSERT_TRUE(tree.insert(2, PrefixTree::kStart, sequence(0, 2 * kBlock + 3), {}));
  const auto pieces = match(tree, sequence(0, 100), anothers, any);
  ASSERT_EQ(pieces.size(), 1);
  EXPECT_EQ(pieces[0].end_token, 2 * kBlock);
}

TEST(PrefixTreeTest, APartOfALongerEntryIsFound) {
  PrefixTree tree(kBlock);
  ASSERT_TRUE(tree.insert(1, PrefixTree::kStart, sequence(0, 100), {}));
  for (const Tokens& query : {sequence(0, 10), joined(sequence(0, 10), sequence(500, 30))}) {
    const auto pieces = match(tree, query, anothers, any);
    ASSERT_EQ(pieces.size(), 1);
    EXPECT_EQ(pieces[0].ino, 1);
    EXPECT_EQ(pieces[0].first_token, 0);
    EXPECT_EQ(pieces[0].end_token, 8);
  }
}

TEST(PrefixTreeTest, AChainIsNamedInItsOrder) {
  PrefixTree tree(kBlock);
  PrefixTree::Place place = PrefixTree::kStart;
  for (uint64_t ino = 1; ino <= 3; ++ino) {
    const auto member = tree.insert(ino, place, sequence(static_cast<uint32_t>(ino * 10), kBlock), {});
    ASSERT_TRUE(member);
    place = tree.end_of(*member);
  }
  const Tokens query =
      joined(joined(sequence(10, kBlock), sequence(20, kBlock)), joined(sequence(30, kBlock), {1, 2}));
  const auto pieces = match(tree, query, anothers, any);
  ASSERT_EQ(pieces.size(), 3);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(pieces[i].ino, i + 1);
    EXPECT_EQ(pieces[i].first_token, i * kBlock);
    EXPECT_EQ(pieces[i].end_token, (i + 1) * kBlock);
  }
  const auto without_second =
      match(tree, query, anothers, [](uint64_t ino) { return ino != 2 ? Use::kUse : Use::kSkip; });
  ASSERT_EQ(without_second.size(), 1) << "what follows a gap is of no use";
}

TEST(PrefixTreeTest, ManyOfTheSameTokensCostNoMore) {
  PrefixTree tree(kBlock);
  std::vector<PrefixTree::Member> members;
  for (uint64_t ino = 0; ino < 100'000; ++ino)
    members.push_back(*tree.insert(ino, PrefixTree::kStart, sequence(0, 64), {}));
  EXPECT_EQ(tree.blocks(), 16);
  for (const PrefixTree::Member member : members) tree.remove(member);
  EXPECT_EQ(tree.blocks(), 0);
}

TEST(PrefixTreeTest, TheCallersOwnComeFirstAndThenTheNewest) {
  PrefixTree tree(kBlock);
  std::vector<PrefixTree::Member> members;
  const auto insert = [&](uint64_t ino, uid_t user) {
    members.push_back(*tree.insert(ino, PrefixTree::kStart, sequence(0, 8), {user, 0, 0444}));
  };
  for (uint64_t ino = 0; ino < 3; ++ino) insert(ino, 1);
  for (uint64_t ino = 3; ino < 1000; ++ino) insert(ino, 2);
  for (uint64_t ino = 1000; ino < 1003; ++ino) insert(ino, 3);
  const auto whose_is = [](const PrefixTree::Access& access) {
    return access.user == 1 ? Whose::kOwn : access.user == 2 ? Whose::kUnreadable : Whose::kAnothers;
  };
  const auto asked = [&] {
    std::vector<uint64_t> inodes;
    (void)match(tree, sequence(0, 8), whose_is, [&](uint64_t ino) {
      inodes.push_back(ino);
      return Use::kSkip;
    });
    return inodes;
  };
  EXPECT_EQ(asked(), (std::vector<uint64_t>{2, 1, 0, 1002, 1001, 1000}));
  tree.remove(members[2]);
  tree.remove(members[1001]);
  EXPECT_EQ(asked(), (std::vector<uint64_t>{1, 0, 1002, 1000}));
  tree.remove(members[1002]);
  tree.remove(members[1000]);
  tree.remove(members[1]);
  EXPECT_EQ(asked(), std::vector<uint64_t>{0});
  size_t looks = 0;
  EXPECT_TRUE(match(tree, sequence(0, 8), whose_is, [&](uint64_t) { return ++looks, Use::kStop; }).empty());
  EXPECT_EQ(looks, 1u);
}

TEST(PrefixTreeTest, EntriesThatCannotBeUsedHideNone) {
  PrefixTree tree(kBlock);
  for (uint32_t ino = 1; ino <= 1000; ++ino) {
    const PrefixTree::Access access = {ino == 1 ? 1u : ino % 2 == 0 ? 2u : 3u, 0, 0444};
    ASSERT_TRUE(
        tree.insert(ino, PrefixTree::kStart, joined(sequence(0, kBlock), Tokens(kBlock, ino)), access));
  }
  const auto whose_is = [](const PrefixTree::Access& access) {
    return access.user == 2 ? Whose::kUnreadable : Whose::kAnothers;
  };
  const auto pieces = match(tree, joined(sequence(0, kBlock), sequence(5000, kBlock)), whose_is,
                            [](uint64_t ino) { return ino == 1 ? Use::kUse : Use::kSkip; });
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].ino, 1u);
}

TEST(PrefixTreeTest, ASearchThatEndsEarlySaysSo) {
  PrefixTree tree(kBlock);
  for (uint32_t ino = 1; ino <= 70'000; ++ino)
    ASSERT_TRUE(tree.insert(ino, PrefixTree::kStart, joined(sequence(0, kBlock), Tokens(kBlock, ino)), {}));
  bool left_out = false;
  const auto unreadable = [](const PrefixTree::Access&) { return Whose::kUnreadable; };
  EXPECT_TRUE(tree.match(sequence(0, kBlock), unreadable, any, left_out).empty());
  EXPECT_TRUE(left_out);
}

TEST(PrefixTreeTest, AgreesWithAModel) {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    std::mt19937_64 random(seed);
    PrefixTree tree(kBlock);
    Model model;
    uint64_t next = 1;
    // Few different tokens, so that prefixes are shared and entries end in each other's midst.
    const auto some_tokens = [&] {
      Tokens tokens(random() % 40);
      uint32_t token = 0;
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (i % kBlock == 0) token = static_cast<uint32_t>(random() % 3 * (random() % 4 == 0 ? 2 : 1));
        tokens[i] = token;
      }
      return tokens;
    };
    const auto some_entry = [&]() -> std::optional<uint64_t> {
      if (model.entries().empty() || random() % 2 == 0) return std::nullopt;
      auto entry = model.entries().begin();
      std::advance(entry, static_cast<ptrdiff_t>(random() % model.entries().size()));
      return entry->first;
    };
    for (int step = 0; step < 10'000; ++step) {
      const bool is_large = model.entries().size() > 40;
      if (const auto entry = some_entry(); entry && (is_large || random() % 3 == 0))
        model.remove(tree, *entry);
      else
        model.insert(tree, next++, some_entry(), some_tokens());
      const Tokens query = joined(some_tokens(), some_tokens());
      const auto usable = [&](uint64_t ino) { return ino * 0x9e37 % 7 != 0 && access_of(ino).user != 4; };
      const auto whose_is = [](const PrefixTree::Access& access) {
        return access.user == 4 ? Whose::kUnreadable : access.user == 3 ? Whose::kOwn : Whose::kAnothers;
      };
      const auto pieces =
          match(tree, query, whose_is, [&](uint64_t ino) { return usable(ino) ? Use::kUse : Use::kSkip; });
      size_t at = 0;
      for (const auto& piece : pieces) {
        ASSERT_EQ(piece.first_token, at);
        ASSERT_TRUE(usable(piece.ino));
        ASSERT_LE(model.entries().at(piece.ino).start, at);
        ASSERT_LE(piece.end_token, model.end_of(piece.ino, query));
        at = piece.end_token;
      }
      ASSERT_EQ(at, model.longest(query, usable)) << "seed " << seed << " step " << step;
      if (step % 100 == 0) {
        ASSERT_EQ(tree.blocks(), model.blocks()) << "seed " << seed << " step " << step;
      }
    }
    while (!model.entries().empty()) model.remove(tree, model.entries().begin()->first);
    ASSERT_EQ(tree.blocks(), 0);
  }
}

}  // namespace kvcachefs::prefix_tree_test
