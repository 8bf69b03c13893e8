#include "tier/pool/lifetimes.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::lifetimes_test {

class LifetimesTest : public test::PoolPartsTest {
 protected:
  LifetimesTest() : PoolPartsTest(Upto::kEvictor) {}

  bool leased(uint64_t ino) {
    MutexLock lock(shard(ino).mutex);
    return entry(ino).leased;
  }
  bool lease(const std::string& name, uint64_t in_ms, Lifetimes::Holder holder = Lifetimes::kNobody) {
    return lifetimes_->lease(handle(name), now_ms_ + in_ms, holder);
  }
  void describe(const std::string& name, uint64_t kept_in_ms, uint64_t expires_in_ms) {
    if (expires_in_ms > 0) {
      ASSERT_TRUE(tree_->set_xattr(ino(name), "user.kv.expires", "1", 0));
    }
    lifetimes_->describe(handle(name), kept_in_ms == 0 ? 0 : now_ms_ + kept_in_ms,
                         expires_in_ms == 0 ? 0 : now_ms_ + expires_in_ms);
  }
  void step_at(uint64_t ms) { lifetimes_->step(now_ms_ + ms); }
  uint64_t pinned_bytes() { return entries_.sums().pinned_bytes(); }
  EvictResult evict_all() {
    return evictor_->evict_now({.unit = EvictOrder::Unit::kPercent, .amount = 100, .patient = false});
  }

  const uint64_t now_ms_ = now_coarse_ms();
};

TEST_F(LifetimesTest, ALeaseKeepsAnEntryUntilItsTime) {
  const uint64_t e = store("e"), other = store("other");
  ASSERT_TRUE(lease("e", 50'000));
  EXPECT_TRUE(leased(e));
  EXPECT_FALSE(leased(other));
  EXPECT_EQ(pinned_bytes(), kBlock);
  EXPECT_EQ(evict_all().entries, 1u);
  EXPECT_TRUE(is_there("e"));
  step_at(49'999);
  EXPECT_TRUE(leased(e));
  step_at(50'000);
  EXPECT_FALSE(leased(e));
  EXPECT_EQ(pinned_bytes(), 0u);
  EXPECT_EQ(evict_all().entries, 1u);
}

TEST_F(LifetimesTest, OfSeveralTheLastCounts) {
  const uint64_t e = store("e");
  ASSERT_TRUE(lease("e", 10'000, 1) && lease("e", 30'000, 2) && lease("e", 20'000));
  EXPECT_EQ(pinned_bytes(), kBlock) << "once";
  step_at(10'000);
  step_at(20'000);
  EXPECT_TRUE(leased(e));
  lifetimes_->end_leases(2);
  EXPECT_FALSE(leased(e));
  lifetimes_->end_leases(2);
  step_at(30'000);
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(LifetimesTest, AShorterLeaseOfOneHolderTakesNothingBack) {
  const uint64_t e = store("e");
  ASSERT_TRUE(lease("e", 30'000, 1) && lease("e", 10'000, 1));
  step_at(29'999);
  EXPECT_TRUE(leased(e));
}

TEST_F(LifetimesTest, ItAndAUsersPinAreApart) {
  const uint64_t e = store("e");
  ASSERT_TRUE(tree_->set_pinned(e, true));
  ASSERT_TRUE(lease("e", 10'000));
  EXPECT_EQ(pinned_bytes(), kBlock);
  ASSERT_TRUE(tree_->set_pinned(e, false));
  EXPECT_EQ(pinned_bytes(), kBlock);
  EXPECT_EQ(evict_all().entries, 0u);
  ASSERT_TRUE(tree_->set_pinned(e, true));
  step_at(10'000);
  EXPECT_TRUE(state(e).pinned);
  EXPECT_EQ(pinned_bytes(), kBlock);
  EXPECT_EQ(evict_all().entries, 0u);
  ASSERT_TRUE(tree_->set_pinned(e, false));
  EXPECT_EQ(evict_all().entries, 1u);
}

TEST_F(LifetimesTest, TheyCountAgainstPinnedMax) {
  const uint64_t a = store("a", std::string(kPoolBytes / 4, 'x')),
                 b = store("b", std::string(kPoolBytes / 4, 'x'));
  capacity_->limit().set_pinned_max(30);
  EXPECT_TRUE(lease("a", 10'000));
  EXPECT_FALSE(lease("b", 10'000));
  EXPECT_FALSE(leased(b));
  step_at(10'000);
  EXPECT_FALSE(leased(a));
  EXPECT_TRUE(lease("b", 20'000));
}

TEST_F(LifetimesTest, WhatHasGoneOrIsAnotherIsNotLeased) {
  const uint64_t e = store("e");
  sys::Handle its = handle("e");
  ++its.generation;
  EXPECT_FALSE(lifetimes_->lease(its, now_ms_ + 1000));
  const sys::Handle old = handle("e");
  ASSERT_TRUE(lease("e", 10'000, 3));
  ASSERT_TRUE(tree_->remove(root(), "e", false));
  EXPECT_FALSE(lifetimes_->lease(old, now_ms_ + 1000));
  EXPECT_EQ(pinned_bytes(), 0u);
  step_at(10'000);
  lifetimes_->end_leases(3);
  (void)e;
}

TEST_F(LifetimesTest, WhatAnEntrySaysReplacesWhatItSaid) {
  const uint64_t e = store("e");
  describe("e", 30'000, 0);
  EXPECT_TRUE(leased(e));
  describe("e", 10'000, 0);
  step_at(10'000);
  EXPECT_FALSE(leased(e));
  describe("e", 30'000, 0);
  ASSERT_TRUE(lease("e", 20'000));
  describe("e", 0, 0);
  EXPECT_TRUE(leased(e)) << "a client's lease goes on";
  step_at(20'000);
  EXPECT_FALSE(leased(e));
}

TEST_F(LifetimesTest, AnEntryExpires) {
  (void)store("e");
  (void)store("later");
  describe("e", 0, 1);
  describe("later", 0, 60'000);
  step_at(1);
  tidy();
  EXPECT_FALSE(is_there("e"));
  EXPECT_TRUE(is_there("later"));
  EXPECT_EQ(counters_.expired, 1u);
  EXPECT_EQ(counters_.discards, 1u);
  describe("later", 0, 0);
  step_at(60'000);
  tidy();
  EXPECT_TRUE(is_there("later"));
}

TEST_F(LifetimesTest, WhatWasGivenAnotherTimeMeanwhileStays) {
  const uint64_t later = store("later"), never = store("never");
  describe("later", 0, 1);
  describe("never", 0, 1);
  ASSERT_TRUE(tree_->set_xattr(later, "user.kv.expires", std::to_string(uint64_t{1} << 39), 0));
  ASSERT_TRUE(tree_->remove_xattr(never, "user.kv.expires"));
  step_at(1);
  tidy();
  EXPECT_TRUE(is_there("later") && is_there("never"));
}

// The daemon's clock is up to a tick behind the host's, which may also be set back.
TEST_F(LifetimesTest, OneWhoseTimeHasNotComeByTheHostsClockExpiresLater) {
  const uint64_t e = store("e");
  describe("e", 0, 1);
  const uint64_t second = wall_clock_ns() / 1'000'000'000 + 2;
  ASSERT_TRUE(tree_->set_xattr(e, "user.kv.expires", std::to_string(second), 0));
  step_at(1);
  tidy();
  EXPECT_TRUE(is_there("e"));
  EXPECT_TRUE(test::eventually([&] {
    tidy();
    return !is_there("e");
  }));
  EXPECT_GE(wall_clock_ns() / 1'000'000'000, second);
}

TEST_F(LifetimesTest, ADateWhoseNanosecondsDoNotFitIsFarAway) {
  const uint64_t e = store("e");
  describe("e", 0, 1);
  ASSERT_TRUE(tree_->set_xattr(e, "user.kv.expires", "18446744074", 0));
  step_at(1);
  tidy();
  EXPECT_TRUE(is_there("e"));
}

TEST_F(LifetimesTest, WhatHasGoneIsForgotten) {
  entries_.observe(insight_->index());
  const uint64_t e = store("e"), f = store("f");
  ASSERT_TRUE(tree_->set_xattr(e, "user.kv.expires", std::to_string(uint64_t{1} << 39), 0));
  ASSERT_TRUE(tree_->set_xattr(f, "user.kv.ttl", "7d", 0));
  while (insight_->index().step()) {
  }
  EXPECT_EQ(lifetimes_->entries(), 2u);
  for (const char* name : {"e", "f"}) ASSERT_TRUE(tree_->remove(root(), name, false));
  while (insight_->index().step()) {
  }
  EXPECT_EQ(lifetimes_->entries(), 0u);
}

TEST_F(LifetimesTest, AHolderHasSoManyLeases) {
  for (size_t i = 0; i <= Lifetimes::kMostLeases; ++i) (void)store("e" + std::to_string(i), "");
  for (size_t i = 0; i < Lifetimes::kMostLeases; ++i) ASSERT_TRUE(lease("e" + std::to_string(i), 1000, 7));
  EXPECT_TRUE(lease("e0", 2000, 7)) << "it has it";
  const std::string more = "e" + std::to_string(Lifetimes::kMostLeases);
  EXPECT_FALSE(lease(more, 1000, 7));
  EXPECT_TRUE(lease(more, 1000, 8));
  lifetimes_->end_leases(7);
  EXPECT_TRUE(lease(more, 1000, 7));
}

TEST_F(LifetimesTest, OneInUseExpiresAfterItsClose) {
  const uint64_t e = store("e");
  open_entry(e);
  describe("e", 0, 1);
  step_at(1);
  tidy();
  EXPECT_TRUE(is_there("e"));
  close_entry(e);
  step_at(5000);
  tidy();
  EXPECT_FALSE(is_there("e"));
}

TEST_F(LifetimesTest, APinnedOneExpiresAndALeasedOneAfterItsLease) {
  const uint64_t e = store("e");
  (void)store("leased");
  ASSERT_TRUE(tree_->set_pinned(e, true));
  ASSERT_TRUE(lease("leased", 3000));
  describe("e", 0, 1);
  describe("leased", 0, 1);
  step_at(1);
  tidy();
  EXPECT_FALSE(is_there("e"));
  EXPECT_TRUE(is_there("leased"));
  step_at(5000);
  tidy();
  EXPECT_FALSE(is_there("leased"));
}

TEST_F(LifetimesTest, AnEntrysOwnTtlDoesNotOutlastItsExpiry) {
  (void)store("e");
  describe("e", 60'000, 1);
  EXPECT_GT(pinned_bytes(), 0u);
  step_at(1);
  tidy();
  EXPECT_FALSE(is_there("e"));
  EXPECT_EQ(pinned_bytes(), 0u);
}

TEST_F(LifetimesTest, AColdEntryExpiresAndALeaseBringsItBack) {
  supervise();
  attach_disk();
  const uint64_t e = store("e"), f = store("f");
  make_cold(e);
  make_cold(f);
  describe("e", 0, 1);
  step_at(1);
  tidy();
  EXPECT_FALSE(is_there("e"));
  ASSERT_TRUE(lease("f", 10'000));
  EXPECT_TRUE(work_until([&] { return state(f).tier == Entry::Tier::kClean; }));
  EXPECT_EQ(evict_all().entries, 0u);
  step_at(10'000);
  EXPECT_EQ(evict_all().entries, 1u);
}

}  // namespace kvcachefs::lifetimes_test
