// The evictor of a pool with a disk: what goes there first, and what leaves it.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include <string>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"
#include "tests/support/system_calls.h"
#include "tier/pool/evictor.h"

namespace kvcachefs::evictor_disk_test {

using test::pattern;
using Whose = Room::Whose;

class EvictorDiskTest : public test::PoolPartsTest {
 protected:
  EvictorDiskTest() : PoolPartsTest(Upto::kEvictor) {}
  // An order whose thread must not wait: nobody else works here.
  EvictResult evict_all() {
    return evictor_->evict_now({.unit = EvictOrder::Unit::kPercent, .amount = 100, .patient = false});
  }
  // The spiller has as much to do as it may have.
  void keep_disk_busy() { tier().spiller.request(4711, kPoolBytes / 2, false); }
  CopyMark::State mark(const std::string& name) const {
    const auto found = copy_mark_of(open(name, O_RDONLY).get());
    return found ? found->state : CopyMark::State::kUnreadable;
  }
  uint64_t blocks(const std::string& name) const { return static_cast<uint64_t>(status(name).st_blocks); }
};

TEST_F(EvictorDiskTest, ACleanEntryGivesUpItsMemoryAlone) {
  supervise();
  attach_disk();
  const uint64_t f = store("f", pattern(1, kBlock));
  make_clean(f);
  const struct stat before = shown_status("f");
  await_later_ctime("f");
  const EvictResult evicted = evict_all();
  EXPECT_EQ(evicted.entries, 1u);
  EXPECT_EQ(evicted.bytes, kBlock);
  EXPECT_EQ(state(f).tier, Entry::Tier::kCold);
  EXPECT_EQ(mark("f"), CopyMark::State::kCold);
  EXPECT_EQ(blocks("f"), 0u);
  EXPECT_EQ(status("f").st_size, static_cast<off_t>(kBlock));
  EXPECT_EQ(status("f").st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  EXPECT_EQ(shown_status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  EXPECT_EQ(evict_all().entries, 0u) << "a cold one has no memory";
}

// A file without its pages must not pass for one in memory.
TEST_F(EvictorDiskTest, TheMarkOfAColdEntryComesBeforeItsPagesGo) {
  supervise();
  attach_disk();
  make_clean(store("f"));
  const auto calls = test::calls_in({SYS_fsetxattr, SYS_fallocate}, [&] { (void)evict_all(); });
  EXPECT_EQ(calls, (std::vector<int>{SYS_fsetxattr, SYS_fsetxattr, SYS_fallocate, SYS_fsetxattr}))
      << "the times, the mark, the pages, the times";
}

TEST_F(EvictorDiskTest, WithoutItsMarkOrItsLeaseACleanEntryStays) {
  supervise();
  attach_disk();
  const uint64_t f = store("f"), g = store("g");
  make_clean(f);
  make_clean(g);
  const test::Mapping mapping(open("g", O_RDONLY).get(), kBlock, PROT_READ, MAP_SHARED);
  {
    const test::NoMarks unprivileged;
    EXPECT_EQ(evict_all().entries, 0u);
  }
  for (const uint64_t its : {f, g}) {
    EXPECT_EQ(state(its).tier, Entry::Tier::kClean);
    EXPECT_TRUE(state(its).parked);
  }
  EXPECT_EQ(blocks("f"), kBlock / 512);
  EXPECT_EQ(mark("f"), CopyMark::State::kClean);
  EXPECT_TRUE(test::eventually([&] {
    parked_->retry(false);
    (void)evict_all();
    return state(f).tier == Entry::Tier::kCold;
  }));
  EXPECT_EQ(state(g).tier, Entry::Tier::kClean) << "it is mapped";
}

TEST_F(EvictorDiskTest, ADirtyEntryGoesToTheDiskFirst) {
  attach_disk();
  const uint64_t f = store("f", pattern(1, kBlock));
  EXPECT_EQ(evict_all().entries, 0u);
  EXPECT_TRUE(state(f).spill_queued && state(f).parked);
  ASSERT_TRUE(work_until([&] { return state(f).tier == Entry::Tier::kClean; }));
  EXPECT_EQ(evict_all().entries, 1u);
  EXPECT_EQ(state(f).tier, Entry::Tier::kCold);
}

TEST_F(EvictorDiskTest, WhatADiskCannotHaveIsDiscarded) {
  attach_disk();
  const uint64_t f = store("f");
  entry(f).disk.set_unspillable();
  EXPECT_EQ(evict_all().entries, 1u);
  EXPECT_FALSE(is_there("f"));
  tier().admission.set_kind(Admission::kSecondAccess);
  const uint64_t g = store("g");
  EXPECT_EQ(evict_all().entries, 1u);
  EXPECT_FALSE(state(g).exists);
  EXPECT_EQ(counters_.refused_bytes, kBlock);
  const uint64_t used_twice = store("h");
  open_entry(used_twice);
  close_entry(used_twice);
  EXPECT_EQ(evict_all().entries, 0u);
  EXPECT_TRUE(state(used_twice).spill_queued);
}

TEST_F(EvictorDiskTest, WhatAWaiterWantsDurableIsNotDiscarded) {
  attach_disk();
  const uint64_t f = store("f");
  entry(f).disk.set_unspillable();
  disk_->queue_spill(entry(f), true);
  EXPECT_EQ(evict_all().entries, 0u);
  EXPECT_TRUE(is_there("f"));
  EXPECT_TRUE(state(f).parked);
}

TEST_F(EvictorDiskTest, WhatIsPromisedStaysIfTheDiskGetsNothingMore) {
  attach_disk();
  const uint64_t known = store("known");
  make_clean(known);
  device_->fail_flushes(1);
  commit();
  ASSERT_FALSE(disk_->takes_more());
  marks_->became_dirty(entry(known), -1);
  const uint64_t f = store("f");
  EXPECT_EQ(evict_all().entries, 1u);
  EXPECT_FALSE(state(f).exists) << "nothing was promised";
  EXPECT_TRUE(state(known).parked);
  (void)disk_->exchange_durability(Durability::kWriteback);
  (void)store("g");
  EXPECT_EQ(evict_all().entries, 0u);
}

TEST_F(EvictorDiskTest, WhatADiskThatIsAwayHasOrIsToHaveStays) {
  const uint64_t clean = store("clean");
  entries_.contents().spilled(entry(clean));
  (void)store("dirty");
  (void)lose_disk(std::chrono::hours(1));
  EXPECT_EQ(evict_all().entries, 1u);
  EXPECT_FALSE(is_there("dirty"));
  EXPECT_TRUE(state(clean).parked);
  (void)disk_->exchange_durability(Durability::kWriteback);
  (void)store("promised");
  EXPECT_EQ(evict_all().entries, 0u);
}

TEST_F(EvictorDiskTest, ForAWriterWhatTheDiskIsTooSlowForIsDiscarded) {
  attach_disk(Durability::kNone, 4096);
  const uint64_t f = store("f");
  (void)fill_up();
  keep_disk_busy();
  EXPECT_FALSE(tidy_for(Whose::kPromotion)) << "the disk will be done";
  EXPECT_TRUE(more_to_tidy());
  EXPECT_TRUE(is_there("f"));
  EXPECT_FALSE(state(f).spill_queued) << "the disk is asked for nothing more";
  (void)disk_->exchange_durability(Durability::kWriteback);
  parked_->retry(true);
  (void)tidy_for(Whose::kWriter);
  EXPECT_TRUE(is_there("f")) << "nothing is lost with durability";
  EXPECT_EQ(counters_.overrun_discards, 0u);
  const uint64_t g = store("g", "");
  (void)disk_->exchange_durability(Durability::kNone);
  (void)tidy_for(Whose::kWriter);
  EXPECT_FALSE(state(g).exists);
  EXPECT_EQ(counters_.overrun_discards, 1u);
}

TEST_F(EvictorDiskTest, OnAFullDiskTheColdestIsDiscarded) {
  attach_disk(Durability::kNone, 6);
  const uint64_t f = store("f"), g = store("g"), h = store("h");
  for (const uint64_t its : {f, g, h}) make_cold(its);
  commit();
  ASSERT_EQ(tier().store->space().free_units(), 2u);
  EXPECT_FALSE(tidy());
  EXPECT_TRUE(state(f).exists);
  disk_->want_room(3 * kUnitBytes);
  tidy();
  EXPECT_FALSE(state(f).exists);
  EXPECT_FALSE(is_there("f"));
  EXPECT_TRUE(state(g).exists && state(h).exists);
  commit();
  EXPECT_EQ(tier().store->space().free_units(), 3u);
}

TEST_F(EvictorDiskTest, WhatIsReadFromTheDiskOrPromotedStaysThere) {
  attach_disk(Durability::kNone, 6);
  const uint64_t f = store("f"), g = store("g"), h = store("h");
  for (const uint64_t its : {f, g, h}) make_cold(its);
  commit();
  hold_on_disk(f);
  open_entry(f, {.from_disk = true});
  entries_.contents().moves(entry(g), DiskFacts::Move::kPromoting);
  disk_->want_room(4 * kUnitBytes);
  tidy();
  EXPECT_TRUE(is_there("f") && is_there("g"));
  EXPECT_FALSE(state(h).exists);
  entries_.contents().moves(entry(g), DiskFacts::Move::kNone);
}

TEST_F(EvictorDiskTest, IfNothingIsColdACleanEntryMakesRoomOnTheDisk) {
  attach_disk(Durability::kNone, 6);
  const uint64_t dirty = store("dirty"), f = store("f");
  make_clean(f);
  commit();
  disk_->want_room(5 * kUnitBytes);
  tidy();
  EXPECT_FALSE(state(f).exists);
  EXPECT_TRUE(state(dirty).exists);
  EXPECT_FALSE(state(dirty).spill_queued);
}

}  // namespace kvcachefs::evictor_disk_test
