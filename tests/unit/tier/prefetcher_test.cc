#include "tier/pool/prefetcher.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::prefetcher_test {

using test::code_of;

constexpr uint64_t kClient = 77;

// What is prefetched is promoted as a pool's entries are.
class PrefetcherTest : public test::PoolPartsTest {
 protected:
  PrefetcherTest() : PoolPartsTest(Upto::kResidency) {}
  uint64_t store_cold(const std::string& name, uint64_t seed = 1) {
    const uint64_t its = store(name, test::pattern(seed, 2 * kBlock));
    make_cold(its);
    return its;
  }
  Result<void> prefetch(const std::vector<PrefetchOrder>& orders) { return prefetcher_->prefetch(orders); }
  // As after a client's open.
  void open_ahead(uint64_t ino, uint64_t client) {
    prefetcher_->opened(entry(ino), false, client);
    prefetcher_->open_ahead(ino, client);
  }
  PrefetchProgress progress() const { return prefetcher_->progress(); }
  bool all_ended() {
    return work_until([&] { return progress().queued == 0 && tier().promoter.queued() == 0; });
  }
};

TEST_F(PrefetcherTest, WithoutADiskThereIsNothingToOrder) {
  EXPECT_EQ(code_of(prefetch({{"f"}})), EOPNOTSUPP);
  open_ahead(store("f"), kClient);
  (void)lose_disk(std::chrono::hours(1));
  EXPECT_EQ(code_of(prefetch({{"f"}})), EIO);
  EXPECT_EQ(progress().failed, 0u);
}

TEST_F(PrefetcherTest, OrderedEntriesComeToMemory) {
  attach_disk();
  make_directory("d");
  const uint64_t f = store_cold("d/f", 1);
  const uint64_t g = store_cold("g", 2);
  ASSERT_TRUE(prefetch({{"d/f"}, {"g", 5}}));
  EXPECT_EQ(progress().queued, 2u);
  ASSERT_TRUE(all_ended());
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_EQ(state(g).tier, Entry::Tier::kClean);
  EXPECT_EQ(content("d/f"), test::pattern(1, 2 * kBlock));
  EXPECT_EQ(progress().done, 2u);
  EXPECT_EQ(progress().bytes, 2 * kUnitBytes);
  EXPECT_EQ(progress().failed + progress().dropped, 0u);
  ASSERT_TRUE(prefetch({{"g"}}));
  ASSERT_TRUE(all_ended());
  EXPECT_EQ(progress().done, 3u) << "it is there already";
}

// He who gives orders is told of nothing that he could not list.
TEST_F(PrefetcherTest, WhatIsNoEntryFails) {
  attach_disk();
  const uint64_t f = store_cold("f");
  (void)make_known_directory("d");
  ASSERT_EQ(::symlinkat("f", root(), "link"), 0);
  (void)make("without an entry");
  ASSERT_TRUE(prefetch({{"d"}, {"link"}, {"none"}, {"without an entry"}, {"../tree/f"}, {"/f"}}));
  EXPECT_EQ(progress().failed, 6u);
  EXPECT_EQ(progress().queued, 0u);
  EXPECT_EQ(tier().promoter.queued(), 0u);
  EXPECT_EQ(state(f).tier, Entry::Tier::kCold);
}

TEST_F(PrefetcherTest, ACopyThatCannotBeReadFails) {
  attach_disk();
  const uint64_t f = store_cold("f");
  device_->fail_reads(1);
  ASSERT_TRUE(prefetch({{"f"}}));
  ASSERT_TRUE(all_ended());
  EXPECT_EQ(progress().failed, 1u);
  EXPECT_EQ(progress().done, 0u);
  EXPECT_EQ(state(f).tier, Entry::Tier::kCold);
}

TEST_F(PrefetcherTest, WhatHasNoMemoryIsDropped) {
  attach_disk();
  const uint64_t f = store_cold("f");
  (void)fill_up();
  ASSERT_TRUE(prefetch({{"f"}}));
  ASSERT_TRUE(all_ended());
  EXPECT_EQ(progress().dropped, 1u);
  EXPECT_EQ(progress().failed + progress().done, 0u);
  EXPECT_EQ(state(f).tier, Entry::Tier::kCold);
}

// The lower priorities are dropped with the first one that has no memory, also where memory comes later.
TEST_F(PrefetcherTest, WhatIsBehindAnEntryWithoutMemoryIsDropped) {
  attach_disk();
  const uint64_t f = store_cold("f", 1), g = store_cold("g", 2), h = store_cold("h", 3);
  const uint64_t here = store("here");
  (void)fill_up();
  ASSERT_TRUE(prefetch({{"h", -2000}, {"g", 1}, {"f", 2}, {"here", 0}}));
  EXPECT_TRUE(tier().promoter.is_ordered(here)) << "it is not evicted";
  capacity_->room().nothing_to_evict(Room::Whose::kPromotion);
  ASSERT_TRUE(all_ended());
  EXPECT_EQ(progress().dropped, 3u);
  EXPECT_EQ(progress().done, 1u);
  for (const uint64_t each : {f, g, h}) EXPECT_EQ(state(each).tier, Entry::Tier::kCold);
  EXPECT_FALSE(tier().promoter.is_ordered(here)) << "the order has ended";
}

TEST_F(PrefetcherTest, WhatTheQueueHasNoPlaceForIsDropped) {
  attach_disk();
  const uint64_t f = store_cold("f");
  for (uint64_t other = f + 1; tier().promoter.request(other, 0); ++other) {
  }
  ASSERT_TRUE(prefetch({{"f"}}));
  EXPECT_EQ(progress().dropped, 1u);
  EXPECT_EQ(progress().queued, 0u);
}

TEST_F(PrefetcherTest, AnOrderAtTheEndIsDropped) {
  attach_disk();
  (void)store_cold("f");
  tier().close();
  ASSERT_TRUE(prefetch({{"f"}}));
  EXPECT_EQ(progress().dropped, 1u);
  EXPECT_EQ(progress().queued, 0u);
}

TEST_F(PrefetcherTest, NoOrderPassesForAnOpenThatWaits) {
  attach_disk();
  const uint64_t f = store_cold("f");
  ASSERT_TRUE(prefetch({{"f", INT32_MAX}}));
  ASSERT_TRUE(all_ended());
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_TRUE(state(f).prefetched);
}

TEST_F(PrefetcherTest, WhatAClientOpenedNextTheLastTimeIsAskedFor) {
  attach_disk();
  const uint64_t f = store_cold("f", 1);
  const uint64_t g = store_cold("g", 2);
  for (const uint64_t its : {f, g}) open_ahead(its, kClient);
  ASSERT_EQ(tier().promoter.queued(), 0u);
  open_ahead(f, kClient);
  EXPECT_EQ(tier().promoter.queued(), 1u);
  ASSERT_TRUE(all_ended());
  EXPECT_EQ(state(g).tier, Entry::Tier::kClean);
  EXPECT_EQ(state(f).tier, Entry::Tier::kCold) << "its own open asks for it";
  EXPECT_EQ(progress().done, 0u) << "nobody has ordered it";
  open_ahead(f, kClient);
  EXPECT_EQ(tier().promoter.queued(), 0u) << "it is in memory";
}

// An order of opens that never comes again: each pair is learned, opened by its first entry, and left.
TEST_F(PrefetcherTest, GuessesThatDoNotComeTrueBecomeFew) {
  attach_disk();
  const uint64_t f = store_cold("f", 1);
  const uint64_t g = store_cold("g", 2);
  const auto guesses = [&](int opens) {
    int made = 0;
    for (int i = 0; i < opens; ++i) {
      open_ahead(f, kClient);
      EXPECT_TRUE(all_ended());
      made += state(g).tier == Entry::Tier::kClean ? 1 : 0;
      if (state(g).tier == Entry::Tier::kClean) make_cold(g);  // unused
    }
    return made;
  };
  for (const uint64_t its : {f, g}) open_ahead(its, kClient);
  EXPECT_EQ(guesses(100), 16);
  const int later = guesses(1000);
  EXPECT_GE(later, 2) << "some are tried";
  EXPECT_LE(later, 5);
  // As soon as one comes true more follow.
  for (int i = 0; i < 300 && !state(g).guessed; ++i) open_ahead(f, kClient);
  ASSERT_TRUE(all_ended());
  ASSERT_EQ(state(g).tier, Entry::Tier::kClean);
  open_entry(g);
  close_entry(g);
  make_cold(g);
  EXPECT_EQ(guesses(10), 2);
}

TEST_F(PrefetcherTest, NothingIsAskedForInVain) {
  attach_disk();
  const uint64_t f = store_cold("f", 1);
  const uint64_t g = store_cold("g", 2);
  const auto open_both = [&](uint64_t client) {
    for (const uint64_t its : {f, g}) open_ahead(its, client);
  };
  open_both(0);
  open_ahead(f, 0);
  EXPECT_EQ(tier().promoter.queued(), 0u) << "clients that are not known are not told apart";
  open_both(kClient);
  prefetcher_->set_auto(false);
  open_ahead(f, kClient);
  EXPECT_EQ(tier().promoter.queued(), 0u);
  prefetcher_->set_auto(true);
  entries_.contents().moves(entry(g), DiskFacts::Move::kPromoting);
  open_ahead(f, kClient);
  EXPECT_EQ(tier().promoter.queued(), 0u) << "it is on its way";
  entries_.contents().moves(entry(g), DiskFacts::Move::kNone);
}

}  // namespace kvcachefs::prefetcher_test
