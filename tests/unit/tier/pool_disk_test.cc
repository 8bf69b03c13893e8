// A pool's disk as the other parts see it: none, away, or there; and which entries are asked of the spiller.
#include "tier/pool/pool_disk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>

#include "base/clock.h"
#include "tests/support/catalogs.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::pool_disk_test {

using test::code_of;
using testing::EndsWith;
using testing::UnorderedElementsAre;

class PoolDiskTest : public test::PoolPartsTest {
 protected:
  PoolDiskTest() : PoolPartsTest(Upto::kDisk) {}
  // True if the spiller is asked for the entry, and told of its bytes.
  bool queues(uint64_t its, bool urgent = false) {
    const uint64_t before = disk_->backlog_bytes();
    disk_->queue_spill(entry(its), urgent);
    return disk_->backlog_bytes() == before + state(its).charged_bytes;
  }
  void fail_the_disk() {
    make_clean(store("committed in vain"));
    device_->fail_flushes(1);
    commit();
  }
  void remove(uint64_t its) {
    EntryTable::Shard& its_shard = shard(its);
    MutexLock lock(its_shard.mutex);
    entries_.removed(*its_shard.find(its), RemovalReason::kDeleted);
  }
  void link(const char* name, const char* other) { ASSERT_EQ(::linkat(root(), name, root(), other, 0), 0); }
};

TEST_F(PoolDiskTest, WithoutOneNothingIsAskedOfIt) {
  EXPECT_EQ(disk_->tier(), nullptr);
  EXPECT_EQ(disk_->owned(), nullptr);
  EXPECT_EQ(disk_->away(), nullptr);
  EXPECT_EQ(disk_->durability(), Durability::kNone);
  EXPECT_FALSE(disk_->exists());
  EXPECT_EQ(code_of(disk_->needed()), EOPNOTSUPP);
  EXPECT_THAT(disk_->needed().error().message, EndsWith(" has no disk tier"));
  EXPECT_EQ(disk_->presence_of_cold(), Presence::kGone);
  EXPECT_FALSE(disk_->takes_more());
  EXPECT_FALSE(disk_->is_busy(UINT64_MAX));
  EXPECT_EQ(disk_->backlog_bytes(), 0u);
  (void)disk_->exchange_durability(Durability::kSync);
  const uint64_t f = store_fresh("f");
  disk_->publish(entry(f));
  EXPECT_EQ(state(f).stage, Entry::Stage::kCandidate);
  EXPECT_FALSE(state(f).spill_queued);
}

TEST_F(PoolDiskTest, AnAwayOneIsWaitedForAsLongAsThePatience) {
  AwayDisk& away = lose_disk(std::chrono::hours(1));
  EXPECT_EQ(disk_->away(), &away);
  EXPECT_TRUE(disk_->exists());
  EXPECT_EQ(code_of(disk_->needed()), EIO);
  EXPECT_THAT(disk_->needed().error().message, EndsWith(": its disk is away"));
  EXPECT_EQ(disk_->presence_of_cold(), Presence::kCold);
  EXPECT_FALSE(disk_->takes_more());
  lose_disk(std::chrono::hours(0));
  EXPECT_EQ(disk_->presence_of_cold(), Presence::kAway);
}

TEST_F(PoolDiskTest, ItIsOwnedBeforeItIsUsed) {
  const uint64_t f = store("f");
  attach_disk();
  EXPECT_EQ(disk_->owned(), disk_->tier());
  EXPECT_TRUE(disk_->exists());
  EXPECT_EQ(*disk_->needed(), disk_->tier());
  EXPECT_EQ(disk_->presence_of_cold(), Presence::kCold);
  EXPECT_TRUE(disk_->takes_more());
  make_clean(f);
  remove(f);
  EXPECT_FALSE(copy(f)) << "the tier in use hears of the entries";
}

TEST_F(PoolDiskTest, OneThatIsNotUsedYetIsNotSeen) {
  auto device = std::make_unique<test::FaultyDisk>(test::FaultyDiskOptions{.size_bytes = 64 * kUnitBytes});
  auto spill = device->channel(Spiller::kDepth), scrub = device->channel(Scrubber::kDepth);
  auto catalog = Catalog::open(place_ / "catalog");
  ASSERT_TRUE(spill && scrub && catalog);
  auto store_of_it =
      std::make_unique<SpillStore>(std::move(device), std::move(*catalog), kUnitBytes, counters_);
  disk_->own(std::make_unique<DiskTier>(std::move(store_of_it), std::move(*spill), std::move(*scrub), idle_,
                                        *arena_, options_, false));
  EXPECT_NE(disk_->owned(), nullptr);
  EXPECT_EQ(disk_->tier(), nullptr);
  EXPECT_FALSE(disk_->takes_more());
  const uint64_t f = store("f");
  disk_->queue_spill(entry(f));
  EXPECT_FALSE(state(f).spill_queued);
  disk_->use();
  EXPECT_EQ(disk_->tier(), disk_->owned());
  EXPECT_TRUE(queues(f));
}

TEST_F(PoolDiskTest, TheDurabilityBeforeIsAnswered) {
  EXPECT_EQ(disk_->exchange_durability(Durability::kSync), Durability::kNone);
  EXPECT_EQ(disk_->durability(), Durability::kSync);
  EXPECT_EQ(disk_->exchange_durability(Durability::kWriteback), Durability::kSync);
}

TEST_F(PoolDiskTest, WithDurabilityWhatIsPublishedIsSpilledByItself) {
  attach_disk();
  const uint64_t f = store_fresh("f"), g = store_fresh("g");
  disk_->publish(entry(f));
  disk_->spill_by_itself(entry(f));
  EXPECT_FALSE(state(f).spill_queued) << "an eviction asks for it";
  (void)disk_->exchange_durability(Durability::kWriteback);
  disk_->publish(entry(g));
  EXPECT_EQ(state(g).stage, Entry::Stage::kCandidate);
  EXPECT_TRUE(state(g).spill_queued);
  disk_->spill_by_itself(entry(f));
  EXPECT_TRUE(state(f).spill_queued);
  EXPECT_EQ(disk_->backlog_bytes(), 2 * kBlock);
}

TEST_F(PoolDiskTest, OnlyWhatIsStoredAndDirtyIsQueuedAndOnce) {
  attach_disk();
  const uint64_t f = store("f"), clean = store("clean"), written = create("written");
  EXPECT_TRUE(queues(f));
  EXPECT_EQ(counters_.admitted_bytes, kBlock);
  EXPECT_FALSE(state(f).spill_urgent);
  EXPECT_FALSE(queues(f)) << "it is queued";
  make_clean(clean);
  EXPECT_FALSE(queues(clean));
  disk_->queue_spill(entry(written));
  EXPECT_FALSE(state(written).spill_queued) << "its last close asks for it";
  const uint64_t reopened = store("reopened");
  open_entry(reopened, {.writer = true});
  EXPECT_FALSE(queues(reopened));
  const uint64_t removed = store("removed");
  remove(removed);
  EXPECT_FALSE(queues(removed));
  EXPECT_TRUE(queues(store_fresh("fresh"))) << "it may not get another name";
  EXPECT_EQ(counters_.admitted_bytes, 2 * kBlock);
}

TEST_F(PoolDiskTest, WhoWaitsForACopyIsNotRefused) {
  attach_disk();
  const uint64_t f = store("f");
  EXPECT_TRUE(queues(f));
  EXPECT_TRUE(queues(f, true)) << "the spiller knows that it has both requests";
  EXPECT_TRUE(state(f).spill_urgent);
  EXPECT_EQ(counters_.admitted_bytes, kBlock) << "it was admitted once";
  const uint64_t full = store("full");
  entry(full).disk.set_unspillable();
  EXPECT_TRUE(queues(full, true));
}

TEST_F(PoolDiskTest, ADiskWhoseFlushFailedTakesNothingMore) {
  attach_disk();
  const uint64_t f = store("f");
  fail_the_disk();
  EXPECT_FALSE(disk_->takes_more());
  EXPECT_FALSE(queues(f));
  EXPECT_NE(disk_->tier(), nullptr) << "it has what it has";
}

TEST_F(PoolDiskTest, AdmissionIsAskedOncePerEntry) {
  options_.admission = Admission::kSecondAccess;
  attach_disk();
  const uint64_t f = store("f"), g = store("g");
  EXPECT_FALSE(disk_->is_admitted(entry(f)));
  EXPECT_FALSE(queues(f));
  EXPECT_EQ(counters_.admitted_bytes, 0u);
  open_entry(f);
  EXPECT_TRUE(disk_->is_admitted(entry(f)));
  EXPECT_TRUE(queues(f));
  set_node_id(g, 7);
  EXPECT_TRUE(disk_->is_admitted(entry(g))) << "the catalog has it";
}

TEST_F(PoolDiskTest, AFullDiskIsNotAskedForAWhile) {
  attach_disk();
  const uint64_t f = store("f");
  EXPECT_FALSE(entry(f).disk.is_unspillable());
  const auto before_ms = static_cast<uint32_t>(now_coarse_ms());
  entry(f).disk.set_unspillable();
  EXPECT_TRUE(entry(f).disk.is_unspillable());
  EXPECT_FALSE(queues(f));
  uint32_t& until_ms = entry(f).disk.unspillable_until_ms;
  EXPECT_GE(until_ms - before_ms, 10'000u);
  EXPECT_LE(until_ms - static_cast<uint32_t>(now_coarse_ms()), 10'000u);
  until_ms = before_ms - 1;
  EXPECT_FALSE(entry(f).disk.is_unspillable());
  EXPECT_TRUE(queues(f));
}

TEST_F(PoolDiskTest, ABacklogAsLargeAsThePressureIsEnough) {
  attach_disk();
  const auto add = [&](uint64_t bytes) { tier().spiller.request(4711, bytes, false); };
  add(kPoolBytes / 2 - 1);
  EXPECT_FALSE(disk_->is_busy(UINT64_MAX));
  add(1);
  EXPECT_EQ(disk_->backlog_bytes(), kPoolBytes / 2);
  EXPECT_TRUE(disk_->is_busy(UINT64_MAX)) << "half of the pool is the most";
  capacity_->limit().set_size(1024 * kMiB);
  EXPECT_FALSE(disk_->is_busy(0));
  add(64 * kMiB - kPoolBytes / 2);
  EXPECT_TRUE(disk_->is_busy(0)) << "the least";
  EXPECT_FALSE(disk_->is_busy(64 * kMiB + 1));
  add(36 * kMiB);
  EXPECT_TRUE(disk_->is_busy(100 * kMiB));
  add(156 * kMiB - 1);
  EXPECT_FALSE(disk_->is_busy(UINT64_MAX));
  add(1);
  EXPECT_TRUE(disk_->is_busy(UINT64_MAX)) << "256 MiB at most";
}

TEST_F(PoolDiskTest, TheLargestWishForRoomIsHandedOnOnce) {
  EXPECT_EQ(disk_->take_wanted_bytes(), 0u);
  disk_->want_room(5);
  disk_->want_room(9);
  disk_->want_room(7);
  constexpr std::chrono::seconds kLong(30);
  const uint64_t begun_ns = now_ns();
  wakeup_.wait(kLong);
  EXPECT_LT(now_ns() - begun_ns, static_cast<uint64_t>(std::chrono::nanoseconds(kLong).count()))
      << "the evictor was not woken";
  EXPECT_EQ(disk_->take_wanted_bytes(), 9u);
  EXPECT_EQ(disk_->take_wanted_bytes(), 0u);
}

TEST_F(PoolDiskTest, TheCatalogIsToldOfWhatHasNoContent) {
  make_directory("d");
  make_directory("d/e");
  ASSERT_EQ(::symlinkat("f", root(), "d/e/link"), 0);
  (void)store("f");
  attach_disk();
  ASSERT_TRUE(disk_->tell_names(true));
  const uint64_t d = catalogued("d");
  ASSERT_NE(d, 0u);
  EXPECT_TRUE(S_ISDIR(node(d)->mode));
  const uint64_t e = test::id_in(tier().store->catalog(), d, "e").value_or(0);
  const uint64_t link = test::id_in(tier().store->catalog(), e, "link").value_or(0);
  ASSERT_TRUE(e != 0 && link != 0);
  EXPECT_EQ(node(link)->link_target, "f");
  EXPECT_EQ(catalogued("f"), 0u) << "it comes with its content";
  ASSERT_TRUE(disk_->tell_names(true));
  EXPECT_EQ(catalogued("d"), d) << "it is told once";
}

TEST_F(PoolDiskTest, TheCatalogIsToldOfLinksIfItIsAskedFor) {
  const uint64_t f = store("f"), g = store("g");
  link("f", "f2");
  link("g", "g2");
  attach_disk();
  ASSERT_TRUE(disk_->tell_names(false));
  make_clean(f);
  EXPECT_TRUE((catalogued("f") == 0) != (catalogued("f2") == 0)) << "one of them";
  ASSERT_TRUE(disk_->tell_names(true));
  make_clean(g);
  EXPECT_NE(catalogued("g"), 0u);
  EXPECT_EQ(catalogued("g"), catalogued("g2"));
  EXPECT_TRUE((catalogued("f") == 0) != (catalogued("f2") == 0)) << "the catalog had it before";
}

TEST_F(PoolDiskTest, WhatCannotBeLookedAtIsAnError) {
  make_directory("d");
  attach_disk();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const auto told = disk_->tell_names(true);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(code_of(told), EMFILE);
  EXPECT_EQ(catalogued("d"), 0u);
  EXPECT_EQ(code_of(disk_->tell_names(true)), 0);
  EXPECT_NE(catalogued("d"), 0u);
}

TEST_F(PoolDiskTest, ChangesDuringARestoreAreNoted) {
  disk_->note_changed(1);
  EXPECT_FALSE(disk_->restoring());
  disk_->set_restoring(true);
  EXPECT_TRUE(disk_->restoring());
  disk_->note_changed(2);
  disk_->note_changed(3);
  disk_->note_changed(2);
  EXPECT_THAT(disk_->end_restoring(), UnorderedElementsAre(2u, 3u));
  EXPECT_FALSE(disk_->restoring());
  disk_->note_changed(4);
  EXPECT_TRUE(disk_->end_restoring().empty());
}

}  // namespace kvcachefs::pool_disk_test
