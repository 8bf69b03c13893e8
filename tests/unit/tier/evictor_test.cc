// The evictor of a pool without a disk; evictor_disk_test.cc has those with one.
#include "tier/pool/evictor.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::evictor_test {

using Unit = EvictOrder::Unit;
using Whose = Room::Whose;

class EvictorTest : public test::PoolPartsTest {
 protected:
  EvictorTest() : PoolPartsTest(Upto::kEvictor) {
    options_.watermarks = {.low_percent = 100, .high_percent = 100};
  }
  // An order whose thread must not wait: nobody else works here.
  EvictResult evict(Unit unit, uint64_t amount) {
    return evictor_->evict_now({.unit = unit, .amount = amount, .patient = false});
  }
  EvictResult evict_all() { return evict(Unit::kPercent, 100); }
};

TEST_F(EvictorTest, WithoutADiskAnEntryIsDiscarded) {
  const uint64_t f = store("f");
  set_lookups(f, 1);
  const EvictResult evicted = evict_all();
  EXPECT_EQ(evicted.entries, 1u);
  EXPECT_EQ(evicted.bytes, kBlock);
  EXPECT_FALSE(is_there("f"));
  EXPECT_TRUE(state(f).removed) << "until the kernel has forgotten it";
  EXPECT_EQ(heard_.gone, (std::vector<test::Heard::Name>{{arena_->tree().ino, f, "f"}}));
  EXPECT_EQ(heard_.waits, 1);
  EXPECT_EQ(evictor_->last_evict().entries, 1u);
  EXPECT_EQ(counters_.evict_orders, 1u);
  EXPECT_EQ(evict_all().entries, 0u);
  EXPECT_EQ(evictor_->last_evict().entries, 0u);
}

TEST_F(EvictorTest, WhatIsInUseStays) {
  open_entry(store("open"));
  const uint64_t held = store("held");
  UniqueFd holder = open("held", O_RDONLY);
  const uint64_t mapped = store("mapped");
  std::optional<test::Mapping> mapping;
  mapping.emplace(open("mapped", O_RDONLY).get(), kBlock, PROT_READ, MAP_SHARED);
  (void)create("written");
  ASSERT_TRUE(entries_.pinned(entry(store("pinned")), kBlock, UINT64_MAX));
  EXPECT_EQ(evict_all().entries, 0u);
  EXPECT_TRUE(state(held).parked && state(mapped).parked);
  holder.reset();
  mapping.reset();
  EXPECT_TRUE(test::eventually([&] {
    parked_->retry(true);
    (void)evict_all();
    return !is_there("held") && !is_there("mapped");
  }));
  EXPECT_TRUE(is_there("open") && is_there("written") && is_there("pinned"));
}

TEST_F(EvictorTest, NothingLeavesThatTheKernelCouldNotHearOf) {
  (void)store("f");
  heard_.behind = true;
  EXPECT_EQ(evict_all().entries, 0u);
  (void)fill_up();
  EXPECT_EQ(tidy_for(Whose::kWriter), std::nullopt) << "it may hear soon";
  EXPECT_TRUE(is_there("f"));
  heard_.behind = false;
  EXPECT_EQ(tidy_for(Whose::kWriter), Room::Answer::kTryAgain);
  EXPECT_FALSE(is_there("f"));
}

// Random lives of files, some of which the test holds or maps as a client would. What is said to be evictable
// is what an order for all of it frees, as the kernel counts memory.
class EvictableModel : public EvictorTest {
 protected:
  static constexpr uint64_t kMostBlocks = 8;

  void step() {
    const std::string name = std::to_string(random_() % 24);
    if (!is_there(name)) return (void)store(name, std::string((1 + random_() % kMostBlocks) * kBlock, 'x'));
    const uint64_t its = ino(name);
    const bool is_open = opens_.contains(its);
    switch (random_() % 6) {
      case 0:
        if (!is_open) open_entry(its), opens_.insert(its);
        return;
      case 1:
        if (is_open) close_entry(its), opens_.erase(its);
        return;
      case 2:
        maps_.try_emplace(name, open(name, O_RDONLY).get(), kBlock, PROT_READ, MAP_SHARED);
        return;
      case 3:
        return (void)maps_.erase(name);
      case 4:
        return state(its).pinned ? entries_.unpinned(entry(its))
                                 : (void)entries_.pinned(entry(its), kBlock, UINT64_MAX);
      default:
        return (void)(random_() % 4 == 0 && evict(Unit::kEntries, 1).entries > 0);
    }
  }
  // The daemon has looked at each that it found held since.
  void settle() {
    parked_->retry(true);
    for (int round = 0; round < 8; ++round) (void)evictor_->tidy();
  }
  uint64_t used() const { return arena_->usage().used_bytes(); }

  std::mt19937_64 random_{7};
  std::set<uint64_t> opens_;
  std::map<std::string, test::Mapping> maps_;
};

TEST_F(EvictableModel, WhatIsSaidToBeEvictableIsWhatLeaves) {
  uint64_t freed = 0, said_in_part = 0;
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    for (int i = 0; i < 40; ++i) step();
    // The first order finds what is mapped.
    (void)evict(Unit::kPercent, random_() % 100);
    (void)evict_all();
    settle();
    for (int i = 0; i < 10; ++i) {
      const std::string name = "new-" + std::to_string(round) + "-" + std::to_string(i);
      (void)store(name, std::string((1 + random_() % kMostBlocks) * kBlock, 'x'));
    }
    if (round % 2 == 0) maps_.clear();
    settle();
    const uint64_t said = insight_->usage().evictable_bytes, before = used();
    ASSERT_TRUE(test::eventually([&] {
      parked_->retry(true);
      (void)evict_all();
      return used() + said <= before;
    })) << "round "
        << round << ": " << said << " were said to be evictable, and " << before - used() << " left";
    EXPECT_EQ(before - used(), said) << round;
    EXPECT_EQ(insight_->usage().evictable_bytes, 0u) << round;
    freed += said;
    said_in_part += said < before ? 1 : 0;
  }
  EXPECT_GT(freed, 100 * kBlock);
  EXPECT_GT(said_in_part, 10u);
}

TEST_F(EvictorTest, AnOrderIsForEntriesBytesOrAPartOfAll) {
  for (int i = 0; i < 8; ++i) (void)store(std::to_string(i), std::string(2 * kBlock, 'x'));
  EXPECT_EQ(evict(Unit::kEntries, 2).entries, 2u);
  EXPECT_FALSE(is_there("0") || is_there("1")) << "the least recently used";
  EXPECT_EQ(evict(Unit::kBytes, 3 * kBlock).entries, 2u);
  EXPECT_EQ(evict(Unit::kPercent, 50).entries, 2u);
  EXPECT_EQ(evict(Unit::kBytes, 0).entries, 0u);
  EXPECT_EQ(evict(Unit::kEntries, 100).entries, 2u);
}

// A client is about to rename what it has just closed, or has looked up what it is about to open.
TEST_F(EvictorTest, WhatIsFreshLeavesLastAndForAWriterAlone) {
  const uint64_t fresh = store_fresh("fresh");
  (void)store("f");
  (void)fill_up();
  EXPECT_EQ(tidy_for(Whose::kPromotion), Room::Answer::kTryAgain);
  EXPECT_FALSE(is_there("f"));
  (void)fill_up();
  EXPECT_EQ(tidy_for(Whose::kPromotion), Room::Answer::kNothingToEvict);
  EXPECT_TRUE(is_there("fresh"));
  EXPECT_EQ(tidy_for(Whose::kWriter), Room::Answer::kTryAgain);
  EXPECT_FALSE(is_there("fresh"));
  EXPECT_FALSE(state(fresh).exists);
  (void)fill_up();
  EXPECT_EQ(tidy_for(Whose::kWriter), Room::Answer::kNothingToEvict);
  EXPECT_FALSE(more_to_tidy());
}

TEST_F(EvictorTest, WhatWasJustLookedUpLeavesIfNothingElseDoes) {
  uint64_t f = 0, g = 0;
  // The test may be held up between the lookup and the round.
  ASSERT_TRUE(test::eventually([&, tries = 0]() mutable {
    f = store("f" + std::to_string(++tries));
    g = store("g" + std::to_string(tries));
    (void)fill_up();
    const uint64_t begun_ms = now_coarse_ms();
    set_looked_up(f);
    EXPECT_EQ(tidy_for(Whose::kWriter), Room::Answer::kTryAgain);
    return now_coarse_ms() - begun_ms < Parked::kRecentMs;
  }));
  EXPECT_FALSE(state(g).exists);
  EXPECT_TRUE(state(f).exists);
  (void)fill_up();
  EXPECT_EQ(tidy_for(Whose::kWriter), Room::Answer::kTryAgain);
  EXPECT_FALSE(state(f).exists);
}

TEST_F(EvictorTest, WithRoomEnoughNothingLeaves) {
  (void)store("f");
  EXPECT_FALSE(tidy());
  EXPECT_EQ(tidy_for(Whose::kWriter), Room::Answer::kTryAgain) << "it is told that there is room";
  EXPECT_TRUE(is_there("f"));
}

TEST_F(EvictorTest, BeyondTheHighWatermarkEntriesLeaveDownToTheLowOne) {
  capacity_->limit().set_watermarks({.low_percent = 25, .high_percent = 50});
  const auto store_half_a_mib = [&](int i) { (void)store(std::to_string(i), std::string(kMiB / 2, 'x')); };
  for (int i = 0; i < 15; ++i) store_half_a_mib(i);
  EXPECT_FALSE(tidy());
  EXPECT_EQ(entries_.sums().files(), 15u);
  for (int i = 15; i < 17; ++i) store_half_a_mib(i);
  EXPECT_FALSE(tidy());
  EXPECT_EQ(entries_.sums().files(), 7u) << "less than a quarter of the pool";
  EXPECT_TRUE(is_there("16"));
  EXPECT_FALSE(tidy());
  EXPECT_EQ(entries_.sums().files(), 7u);
}

TEST_F(EvictorTest, RoundsFollowOneAnotherWhileFilesAreWritten) {
  ASSERT_TRUE(capacity_->admit_writer(create("f"), 0));
  EXPECT_TRUE(tidy());
}

TEST_F(EvictorTest, AnEntryWithManyNamesLeavesAFewAtATime) {
  const uint64_t f = store("f");
  for (unsigned i = 0; i < Tree::kNamesAtOnce; ++i)
    ASSERT_EQ(::linkat(root(), "f", root(), std::to_string(i).c_str(), 0), 0);
  EXPECT_EQ(evict_all().entries, 0u);
  EXPECT_TRUE(state(f).exists);
  EXPECT_EQ(test::list(place_ / "arena/tree").size(), 1u);
  EXPECT_EQ(evictor_->evict_now({.unit = Unit::kEntries, .amount = 1}).entries, 1u)
      << "it waits for the rest";
  EXPECT_FALSE(state(f).exists);
}

TEST_F(EvictorTest, WhatWasClosedASecondAgoIsNoLongerFresh) {
  const uint64_t begun_ms = now_coarse_ms();
  const uint64_t f = store_fresh("f");
  EXPECT_TRUE(test::eventually([&] {
    tidy();
    return state(f).stage == Entry::Stage::kCandidate;
  }));
  EXPECT_GE(now_coarse_ms(), begun_ms + 1000);
}

TEST_F(EvictorTest, AnOrderWaitsUntilWhatWasJustClosedIsNoLongerFresh) {
  const uint64_t begun_ms = now_coarse_ms();
  (void)store_fresh("f");
  EXPECT_EQ(evictor_->evict_now({.unit = Unit::kEntries, .amount = 1}).entries, 1u);
  EXPECT_GE(now_coarse_ms(), begun_ms + 1000);
}

TEST_F(EvictorTest, APoolShrinksAsFarAsItsEntriesLeave) {
  (void)store("f", std::string(kMiB, 'x'));
  (void)store_fresh("g", std::string(kMiB, 'x'));
  (void)store("h", std::string(kMiB, 'x'));
  open_entry(store("open", std::string(kMiB, 'x')));
  const uint64_t deadline_ns = now_ns() + 60'000'000'000;
  EXPECT_EQ(evictor_->shrink_to(3 * kMiB, deadline_ns).entries, 1u);
  EXPECT_FALSE(is_there("f"));
  EXPECT_EQ(evictor_->shrink_to(0, deadline_ns).entries, 2u);
  EXPECT_TRUE(is_there("open"));
  EXPECT_EQ(evictor_->shrink_to(0, deadline_ns).entries, 0u) << "nothing more can go";
}

TEST_F(EvictorTest, APoolThatShrinksWaitsForItsEntriesUntilTheDeadline) {
  (void)store("f");
  UniqueFd holder = open("f", O_RDONLY);
  EXPECT_EQ(evictor_->shrink_to(0, now_ns()).entries, 0u);
  EXPECT_TRUE(parked_->more_to_come());
  holder.reset();
  EXPECT_EQ(evictor_->shrink_to(0, now_ns() + 60'000'000'000).entries, 1u);
}

// The first victim is not let go of yet, and all others were closed a moment ago and not renamed. A writer
// that waits can be told to wait for that; one with passthrough would meet the end of the memory.
TEST_F(EvictorTest, AWriterBeyondItsPromiseHasRoomAfterEachRound) {
  ASSERT_TRUE(arena_->resize(64 * kMiB));
  capacity_->limit().set_size(64 * kMiB);
  const auto store_and_hold = [&](const std::string& name) {
    const uint64_t its = create(name);
    UniqueFd holder = open(name);
    EXPECT_TRUE(sys::allocate(holder.get(), 0, 0, kMiB));
    close_entry(its, {.writer = true});
    return holder;
  };
  // False: the machine held it up, so that a round was cut short or the writer counted as idle.
  const auto write_on = [&] {
    const uint64_t begun_ns = now_ns();
    const UniqueFd held = store_and_hold("held");
    for (int i = 0; i < 29; ++i) (void)store_and_hold(std::to_string(i));
    const uint64_t large = create("large");
    EXPECT_TRUE(capacity_->admit_writer(large, 0));
    uint64_t end = 33 * kMiB;  // it was promised 32
    for (int round = 0; round < 4; ++round, end += 6 * kMiB) {
      EXPECT_TRUE(sys::allocate(open("large").get(), 0, 0, end)) << "round " << round;
      const uint64_t round_begun_ns = now_ns();
      (void)evictor_->tidy();
      if (now_ns() - round_begun_ns > 5'000'000 || now_ns() - begun_ns > 900'000'000) return false;
      EXPECT_FALSE(capacity_->writer_outruns()) << "round " << round;
    }
    return true;
  };
  EXPECT_TRUE(test::eventually([&] {
    if (write_on()) return true;
    (void)capacity_->writers().close(ino("large"), 0);
    close_entry(ino("large"), {.writer = true});
    for (const std::string& name : test::list(place_ / "arena/tree"))
      EXPECT_TRUE(tree_->remove(root(), name.c_str(), false));
    return false;
  }));
}

}  // namespace kvcachefs::evictor_test
