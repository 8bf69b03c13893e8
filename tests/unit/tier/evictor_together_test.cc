// The evictor where an entry leaves with others or after them (tier/pool/evictor_together.cc).
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_parts.h"
#include "tier/pool/evictor.h"

namespace kvcachefs::evictor_together_test {

class EvictorTogetherTest : public test::PoolPartsTest {
 protected:
  EvictorTogetherTest() : PoolPartsTest(Upto::kEvictor) {
    options_.watermarks = {.low_percent = 100, .high_percent = 100};
  }
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    entries_.observe(insight_->index());
  }
  uint64_t store_in(const std::string& name, const std::string& group) {
    const uint64_t made = store(name);
    EXPECT_TRUE(tree_->set_xattr(made, "user.kv.group", group, 0));
    read();
    return made;
  }
  // A block of 16 equal tokens after those of the parent.
  uint64_t store_after(const std::string& name, const std::string& parent, uint32_t token) {
    const uint64_t made = store(name);
    const std::vector<uint32_t> tokens(16, token);
    const std::string bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(uint32_t));
    if (!parent.empty()) {
      EXPECT_TRUE(tree_->set_xattr(made, "user.kv.parent", parent, 0));
    }
    EXPECT_TRUE(tree_->set_xattr(made, "user.kv.tokens", bytes, 0));
    read();
    return made;
  }
  void read() {
    while (insight_->index().step()) {
    }
  }
  EvictResult evict(uint64_t entries) {
    return evictor_->evict_now({.unit = EvictOrder::Unit::kEntries, .amount = entries, .patient = false});
  }
  std::string left() const {
    std::string names;
    for (const char* name : {"a", "b", "c", "d", "e"})
      if (is_there(name)) names += name;
    return names;
  }
};

TEST_F(EvictorTogetherTest, AGroupLeavesAsOne) {
  (void)store_in("a", "g");
  (void)store_in("b", "h");
  (void)store_in("c", "g");
  (void)store_in("d", "g");
  EXPECT_EQ(evict(1).entries, 1u);
  EXPECT_EQ(left(), "bcd");
  tidy();
  EXPECT_EQ(left(), "b");
}

TEST_F(EvictorTogetherTest, AMemberInUseStaysAndTheOthersOfAnotherUserDo) {
  (void)store_in("a", "g");
  open_entry(store_in("b", "g"));
  (void)store_in("d", "g");
  const uint64_t c = store("c");
  ASSERT_EQ(::fchownat(root(), "c", 4001, 0, 0), 0);
  ASSERT_TRUE(tree_->set_xattr(c, "user.kv.group", "g", 0));
  read();
  EXPECT_EQ(evict(1).entries, 1u);
  tidy();
  EXPECT_EQ(left(), "bc");
}

TEST_F(EvictorTogetherTest, AGroupIsLeftWithTheOwner) {
  (void)store_in("a", "g");
  const uint64_t b = store_in("b", "g");
  bool begun = false;
  AttributeChange change;
  change.uid = 4001;
  ASSERT_TRUE(tree_->change(b, change, begun));
  read();
  EXPECT_EQ(evict(1).entries, 1u);
  tidy();
  EXPECT_EQ(left(), "b");
}

TEST_F(EvictorTogetherTest, AFreshEntryThatIsEvictedIsIndexed) {
  supervise();
  attach_disk();
  const uint64_t e = create("e");
  ASSERT_TRUE(tree_->set_xattr(e, "user.kv.group", "g", 0));
  close_entry(e, {.writer = true});
  make_clean(e);
  read();
  EXPECT_EQ(insight_->index().usage().entries, 0u) << "it has not been published";
  (void)evict(1);
  ASSERT_EQ(state(e).tier, Entry::Tier::kCold);
  read();
  EXPECT_EQ(insight_->index().usage().entries, 1u);
}

TEST_F(EvictorTogetherTest, AnOpenOfOneRefreshesAll) {
  const uint64_t a = store_in("a", "g");
  (void)store_in("b", "g");
  (void)store_in("c", "h");
  (void)store_in("d", "h");
  open_entry(a);
  close_entry(a);
  read();
  EXPECT_EQ(evict(1).entries, 1u);
  tidy();
  EXPECT_EQ(left(), "ab");
}

TEST_F(EvictorTogetherTest, OfAGroupOnTheDiskTheMemoryGoesAsOneAndThenAll) {
  supervise();
  attach_disk();
  const uint64_t a = store_in("a", "g"), b = store_in("b", "g");
  make_clean(a);
  make_clean(b);
  (void)evict(1);
  tidy();
  EXPECT_EQ(state(a).tier, Entry::Tier::kCold);
  EXPECT_EQ(state(b).tier, Entry::Tier::kCold);
  EXPECT_EQ(left(), "ab");
}

TEST_F(EvictorTogetherTest, AGroupExpiresWithItsFirst) {
  (void)store_in("a", "g");
  const uint64_t b = store_in("b", "g");
  ASSERT_TRUE(tree_->set_xattr(b, "user.kv.expires", "1", 0));
  read();
  for (int turns = 0; turns < 100 && !left().empty(); ++turns) tidy();  // each takes 2 ms at most
  EXPECT_EQ(left(), "");
  EXPECT_EQ(counters_.expired, 1u);
}

// A daemon that died in the midst of it would not know whose the rest is.
TEST_F(EvictorTogetherTest, OneThatHasExpiredGoesLastOfItsGroup) {
  const uint64_t a = store_in("a", "g");
  for (const char* name : {"b", "c"}) (void)store_in(name, "g");
  ASSERT_TRUE(tree_->set_xattr(a, "user.kv.expires", "1", 0));
  read();
  tidy();
  ASSERT_EQ(left(), "abc");
  ASSERT_TRUE(tree_->set_xattr(a, "user.kv.expires", "9999999999", 0));
  tidy();
  EXPECT_EQ(left(), "a") << "it lives on, as it says by then";
  EXPECT_EQ(counters_.expired, 0u);
}

// As after a start: what expires may be read before the others of its group.
TEST_F(EvictorTogetherTest, AGroupWaitsUntilAllHasBeenRead) {
  const uint64_t a = store("a"), b = store("b"), c = store_in("c", "g");
  ASSERT_TRUE(tree_->set_xattr(c, "user.kv.expires", "1", 0));
  read();
  for (const uint64_t each : {a, b}) ASSERT_TRUE(tree_->set_xattr(each, "user.kv.group", "g", 0));
  tidy();
  tidy();
  EXPECT_EQ(left(), "abc");
  read();
  const uint64_t deadline_ns = now_ns() + 10'000'000'000;
  while (!left().empty() && now_ns() < deadline_ns) tidy();
  EXPECT_EQ(left(), "");
  EXPECT_EQ(counters_.expired, 1u);
}

TEST_F(EvictorTogetherTest, OneThatHasLeftTheGroupStays) {
  (void)store_in("a", "g");
  const uint64_t b = store_in("b", "g"), c = store_in("c", "g"), d = store_in("d", "g");
  ASSERT_TRUE(tree_->set_xattr(d, "user.kv.expires", "1", 0));
  read();
  tidy();
  ASSERT_EQ(left(), "abcd") << "the others are about to leave, and then it";
  ASSERT_TRUE(tree_->remove_xattr(b, "user.kv.group"));
  ASSERT_TRUE(tree_->set_xattr(c, "user.kv.group", "h", 0));
  tidy();
  EXPECT_EQ(left(), "bc") << "the index has not heard of it";
}

TEST_F(EvictorTogetherTest, WithLeafFirstWhatIsOfNoUseAloneLeavesFirst) {
  evictor_->set_leaf_first(true);
  (void)store_after("a", "", 1);
  (void)store_after("b", "a", 2);
  (void)store_after("c", "b", 3);
  (void)store_after("d", "a", 4);
  (void)store("e");
  for (const size_t more : {4u, 3u, 2u, 1u}) {
    EXPECT_EQ(evict(1).entries, 1u);
    ASSERT_EQ(left().size(), more);
    EXPECT_TRUE(is_there("a") || more < 2) << left();
    EXPECT_TRUE(is_there("b") || !is_there("c")) << left();
  }
}

TEST_F(EvictorTogetherTest, WithoutItTheOldestLeaves) {
  (void)store_after("a", "", 1);
  (void)store_after("b", "a", 2);
  EXPECT_EQ(evict(1).entries, 1u);
  EXPECT_EQ(left(), "b");
}

// Who may read a leaf could keep all that comes before it.
TEST_F(EvictorTogetherTest, ALeafThatIsOpenOrPinnedKeepsNothing) {
  evictor_->set_leaf_first(true);
  (void)store_after("a", "", 1);
  open_entry(store_after("b", "a", 2));
  (void)store_after("c", "", 3);
  ASSERT_TRUE(entries_.pinned(entry(store_after("d", "c", 4)), kBlock, UINT64_MAX));
  EXPECT_TRUE(test::eventually([&] {
    (void)evict(2);
    return left() == "bd";
  })) << left();
}

// An answer needs the parent by its name.
TEST_F(EvictorTogetherTest, AnotherEntryWithTheSameTokensDoesNotStandInForAParent) {
  evictor_->set_leaf_first(true);
  (void)store_after("a", "", 1);
  (void)store_after("b", "", 1);
  (void)store_after("c", "a", 2);
  EXPECT_EQ(evict(1).entries, 1u);
  EXPECT_EQ(left(), "ab");
  EXPECT_EQ(evict(1).entries, 1u);
  EXPECT_EQ(left(), "b");
}

TEST_F(EvictorTogetherTest, OnTheDiskLeavesAreDiscardedFirst) {
  supervise();
  attach_disk();
  evictor_->set_leaf_first(true);
  const uint64_t a = store_after("a", "", 1), b = store_after("b", "a", 2);
  make_cold(a);
  make_clean(b);
  limits_.entries.set(2);
  EXPECT_EQ(evictor_->wait_to_make({.may_wait = false}, 0, &limits_.entries, true), Waited::kWouldWait);
  const Room::Demand demand(limits_.entries.room(), Room::Whose::kWriter, 1);
  ASSERT_TRUE(work_until([&] {
    tidy();
    return !is_there("b");
  }));
  EXPECT_TRUE(is_there("a"));
}

}  // namespace kvcachefs::evictor_together_test
