#include "tier/pool/capacity.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "tests/support/capacity_test.h"

namespace kvcachefs::capacity_test {

constexpr uint64_t kBlock = 4096;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
using test::CapacityTest;
using Evictor = test::AnsweringEvictor;
constexpr auto kLong = std::chrono::minutes(10);
constexpr uint64_t kIno = 7;

TEST_F(CapacityTest, AWrongGuessCostsAnEighthOfThePoolAtMost) {
  Capacity& capacity = make(8 * kMiB);
  EXPECT_EQ(capacity.expected_entry_bytes(), 0u) << "nothing learned";
  capacity.stored(kMiB - 1);
  EXPECT_EQ(capacity.expected_entry_bytes(), kMiB - 1);
  capacity.stored(4 * kMiB);
  capacity.stored(4 * kMiB);
  EXPECT_EQ(capacity.expected_entry_bytes(), kMiB);
  capacity.set_entry_size(5 * kMiB);
  EXPECT_EQ(capacity.expected_entry_bytes(), 5 * kMiB) << "a given size is no guess";
  EXPECT_EQ(capacity.learned_entry_bytes(), kMiB);
  capacity.set_entry_size(0);
  EXPECT_EQ(capacity.expected_entry_bytes(), kMiB);
}

TEST_F(CapacityTest, InALargePoolAGuessIsLimitedByWhatAllocatingItTakes) {
  Capacity& capacity = make(64 * kGiB);
  capacity.stored(3 * kGiB);
  EXPECT_EQ(capacity.expected_entry_bytes(), 256 * kMiB);
}

TEST_F(CapacityTest, ASmallPoolPromisesHalfOfItself) {
  Capacity& capacity = make(kGiB - kBlock, {}, kMiB);
  EXPECT_FALSE(capacity.promises_expected_size());
  ASSERT_TRUE(capacity.admit_writer(kIno, 0));
  EXPECT_EQ(capacity.writers().promised_to(kIno), (kGiB - kBlock) / 2);
  EXPECT_FALSE(capacity.admit_writer(kIno + 1, 0)) << "no other writer gets as much";
  EXPECT_EQ(capacity.writers().promised_to(kIno + 1), 0u);
}

TEST_F(CapacityTest, ALargePoolPromisesTheExpectedSize) {
  Capacity& capacity = make(kGiB, {}, kMiB);
  EXPECT_TRUE(capacity.promises_expected_size());
  ASSERT_TRUE(capacity.admit_writer(kIno, 0));
  EXPECT_EQ(capacity.writers().promised_to(kIno), kMiB);
  capacity.stored(kMiB);
  EXPECT_TRUE(capacity.promises_expected_size());
  capacity.stored(kMiB + 1);
  EXPECT_FALSE(capacity.promises_expected_size()) << "an entry was larger";
  ASSERT_TRUE(capacity.admit_writer(kIno, 0));
  EXPECT_EQ(capacity.writers().promised_to(kIno), 512 * kMiB);
}

TEST_F(CapacityTest, PromisesLeaveHalfOfThePoolAlone) {
  Capacity& capacity = make(2 * kGiB, {}, kMiB);
  for (uint64_t ino = 0; ino < 1024; ++ino) ASSERT_TRUE(capacity.admit_writer(ino, 0)) << ino;
  EXPECT_FALSE(capacity.admit_writer(1024, 0));
  EXPECT_EQ(capacity.writers().promised_bytes(), kGiB);
}

TEST_F(CapacityTest, InDaemonIoEveryWriterIsAdmittedWithoutAPromise) {
  backing_.daemon_io = true;
  Capacity& capacity = make(kMiB);
  for (uint64_t ino = 0; ino < 3; ++ino) EXPECT_TRUE(capacity.admit_writer(ino, 0));
  EXPECT_EQ(capacity.writers().promised_bytes(), 0u);
  EXPECT_EQ(capacity.writers().count(), 3u);
  evictor_.wait(kLong);  // it was woken for the writers
}

TEST_F(CapacityTest, WhatOthersWerePromisedIsNoRoom) {
  Capacity& capacity = make(kMiB);
  EXPECT_TRUE(capacity.has_room(kMiB));
  EXPECT_FALSE(capacity.has_room(kMiB + 1));
  ASSERT_TRUE(capacity.writers().open(kIno, 0, kBlock, kMiB));
  EXPECT_TRUE(capacity.has_room(kMiB - kBlock));
  EXPECT_FALSE(capacity.has_room(kMiB - kBlock + 1));
  EXPECT_TRUE(capacity.has_room(kMiB, kBlock)) << "its own promise";
  EXPECT_FALSE(capacity.has_room(kMiB + 1, kBlock));
}

TEST_F(CapacityTest, ACallerThatAsksForNothingOrForTheImpossibleDoesNotWait) {
  Capacity& capacity = make(kMiB);
  use(kMiB);
  EXPECT_EQ(capacity.wait_for_room(0, Patience{}), Waited::kRoom);
  EXPECT_EQ(capacity.wait_for_room(kMiB + 1, Patience{}), Waited::kNoRoom) << "more than the pool";
  use(0);
  ASSERT_TRUE(capacity.writers().open(kIno, 0, kMiB, kMiB));
  EXPECT_EQ(capacity.wait_for_room(kMiB, Patience{}, kMiB), Waited::kRoom);
  EXPECT_EQ(counters_.reservation_waits, 0u);
}

TEST_F(CapacityTest, ACallerWithoutPatienceHearsThatItWouldWait) {
  Capacity& capacity = make(kMiB);
  const Patience impatient{.may_wait = false};
  EXPECT_EQ(capacity.wait_for_room(kMiB, impatient), Waited::kRoom);
  use(kMiB);
  EXPECT_EQ(capacity.wait_for_room(1, impatient), Waited::kWouldWait);
  EXPECT_EQ(capacity.wait_for_room(kMiB + 1, impatient), Waited::kNoRoom) << "no wait helps";
  EXPECT_EQ(capacity.room().wanted_bytes(), 0u) << "nothing is evicted for it";
  capacity.waiting().end_waits();
  EXPECT_EQ(capacity.wait_for_room(1, impatient), Waited::kNoRoom);
  EXPECT_EQ(counters_.reservation_waits, 0u);
}

// The time in a queue before it is a part of a wait.
TEST_F(CapacityTest, AWaitIsBoundedFromWhenTheRequestCame) {
  Capacity& capacity = make(kMiB);
  use(kMiB);
  const uint64_t now = now_ns();
  capacity.set_durability(Durability::kWriteback);
  EXPECT_EQ(capacity.wait_for_room(1, {.begun_ns = now - 31'000'000'000}), Waited::kNoRoom);
  EXPECT_LT(counters_.reservation_wait_ns, 20'000'000'000u);
  use(0);
  EXPECT_EQ(capacity.wait_for_room(1, {.begun_ns = now - 31'000'000'000}), Waited::kRoom);
}

TEST_F(CapacityTest, AtTheEndNobodyWaits) {
  Capacity& capacity = make(kMiB);
  use(kMiB);
  capacity.set_durability(Durability::kWriteback);
  const Evictor evictor(evictor_, [&] { capacity.waiting().end_waits(); });
  EXPECT_EQ(capacity.wait_for_room(1, Patience{}), Waited::kNoRoom);
  EXPECT_LT(counters_.reservation_wait_ns, 20'000'000'000u);
  EXPECT_FALSE(capacity.closed());
}

TEST_F(CapacityTest, ThoseThatWaitAreNotOvertaken) {
  Capacity& capacity = make(2 * kMiB);
  const Patience impatient{.may_wait = false};
  EXPECT_EQ(capacity.wait_for_room(2 * kMiB, impatient), Waited::kRoom) << "nobody waits";
  WaitingLane::Job job = [] {};
  ASSERT_TRUE(capacity.waiting().hand_over(job, [] { return true; }));
  EXPECT_EQ(capacity.wait_for_room(kMiB, impatient), Waited::kRoom) << "there is room for both";
  EXPECT_EQ(capacity.wait_for_room(kMiB + 1, impatient), Waited::kWouldWait);
  EXPECT_EQ(capacity.wait_for_room(kMiB + 1, Patience{}), Waited::kRoom) << "it is of those that wait";
  {
    const Room::Demand demand(capacity.room(), Room::Whose::kWriter, kBlock);
    EXPECT_EQ(capacity.wait_for_room(kMiB, impatient), Waited::kWouldWait);
  }
  ASSERT_TRUE(capacity.waiting().step(std::chrono::milliseconds(0)));
  EXPECT_EQ(capacity.wait_for_room(2 * kMiB, impatient), Waited::kRoom);
}

TEST_F(CapacityTest, AClosedPoolGivesWhatIsFreeAndDoesNotWait) {
  Capacity& capacity = make(kMiB);
  ASSERT_TRUE(capacity.writers().open(kIno, 0, kMiB, kMiB));
  capacity.close();
  EXPECT_TRUE(capacity.closed());
  EXPECT_EQ(capacity.wait_for_room(kMiB, Patience{}), Waited::kRoom) << "nobody keeps a promise any more";
  use(kBlock);
  EXPECT_EQ(capacity.wait_for_room(kMiB - kBlock, Patience{}), Waited::kRoom);
  EXPECT_EQ(capacity.wait_for_room(kMiB - kBlock + 1, Patience{}), Waited::kNoRoom);
  EXPECT_EQ(counters_.reservation_waits, 0u);
}

TEST_F(CapacityTest, AWaitEndsWhenTheEvictorHasMadeRoom) {
  Capacity& capacity = make(kMiB);
  use(kMiB);
  uint64_t wanted = 0;
  const Evictor evictor(evictor_, [&] {
    wanted = capacity.room().wanted_bytes(Room::Whose::kWriter);
    EXPECT_TRUE(capacity.wants_eviction());
    use(0);
    capacity.room().room_made();
  });
  EXPECT_EQ(capacity.wait_for_room(3 * kBlock, Patience{}), Waited::kRoom);
  EXPECT_EQ(wanted, 3 * kBlock + Capacity::kCountingSlackBytes);
  EXPECT_EQ(capacity.room().wanted_bytes(), 0u);
  EXPECT_EQ(counters_.reservation_waits, 1u);
  EXPECT_GT(counters_.reservation_wait_ns, 0u);
}

TEST_F(CapacityTest, AWaitEndsWhenNothingCanBeEvicted) {
  Capacity& capacity = make(kMiB);
  capacity.set_durability(Durability::kWriteback);
  use(kMiB);
  const Evictor evictor(evictor_, [&] { capacity.room().nothing_to_evict(Room::Whose::kWriter); });
  EXPECT_EQ(capacity.wait_for_room(1, Patience{}), Waited::kNoRoom);
  EXPECT_EQ(counters_.reservation_waits, 1u);
  EXPECT_LT(counters_.reservation_wait_ns, 20'000'000'000u) << "its patience is 30 seconds";
}

TEST_F(CapacityTest, AFullPoolIsLookedAtAgainWhileOtherWritersAreAtWork) {
  Capacity& capacity = make(kMiB);
  use(kMiB);
  capacity.writers().open(kIno, 0, true);
  capacity.writers().open(kIno + 1, 0, true);
  const Evictor evictor(evictor_, [&] { capacity.room().nothing_to_evict(Room::Whose::kWriter); });
  EXPECT_EQ(capacity.wait_for_room(1, Patience{}), Waited::kNoRoom)
      << "nothing has changed between the looks";
  EXPECT_GE(evictor.rounds(), 2);
}

TEST_F(CapacityTest, NothingIsEvictedForTheSakeOfPromises) {
  Capacity& capacity = make(kMiB);
  ASSERT_TRUE(capacity.writers().open(kIno, 0, kMiB, kMiB));
  EXPECT_EQ(capacity.wait_for_room(kMiB - Capacity::kCountingSlackBytes, Patience{}), Waited::kRoom)
      << "free, though promised";
  const Evictor evictor(evictor_, [&] { capacity.room().nothing_to_evict(Room::Whose::kWriter); });
  EXPECT_EQ(evictor.rounds(), 0);
  EXPECT_EQ(capacity.wait_for_room(kMiB - Capacity::kCountingSlackBytes + 1, Patience{}), Waited::kNoRoom)
      << "the kernel's count of free blocks is not exact";
  EXPECT_GE(evictor.rounds(), 1);
}

TEST_F(CapacityTest, PressureBeginsAboveTheHighWatermarkAndEndsAtTheLow) {
  // 256 blocks; the marks are 100 * 50 and 100 * 80 hundredths of the size, in whole bytes.
  Capacity& capacity = make(kMiB);
  const uint64_t low = kMiB / 100 * 50, high = kMiB / 100 * 80;
  const uint64_t below_high = high / kBlock * kBlock, below_low = low / kBlock * kBlock;
  use(below_high);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  EXPECT_FALSE(capacity.wants_eviction());
  use(below_high + kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), below_high + kBlock - low);
  EXPECT_TRUE(capacity.wants_eviction());
  use(below_low + kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), below_low + kBlock - low) << "still on the way down";
  use(below_low);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  EXPECT_FALSE(capacity.wants_eviction());
  use(below_high);
  EXPECT_EQ(capacity.pressure_bytes(), 0u) << "on the way up";
}

TEST_F(CapacityTest, TheMarksThemselvesAreInclusive) {
  constexpr uint64_t kSize = 100 * kBlock;
  Capacity& capacity = make(kSize);
  use(80 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  use(81 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 31 * kBlock);
  use(50 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  EXPECT_FALSE(capacity.wants_eviction());
  capacity.limit().set_watermarks({10, 20});
  EXPECT_EQ(capacity.pressure_bytes(), 40 * kBlock);
}

TEST_F(CapacityTest, RoomForAFewEntriesIsKeptBeyondTheWatermarks) {
  constexpr uint64_t kSize = 1600 * kBlock;
  Capacity& capacity = make(kSize, {99, 100}, 10 * kBlock);
  use(1560 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u) << "four entries fit";
  use(1561 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 11 * kBlock) << "down to room for five";
  use(0);
  ASSERT_EQ(capacity.pressure_bytes(), 0u);
  capacity.set_entry_size(kSize);
  use(1500 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u) << "a sixteenth of the pool at most";
  use(1501 * kBlock);
  EXPECT_GT(capacity.pressure_bytes(), 0u);
}

TEST_F(CapacityTest, RoomForWhatWritersGrowByIsKept) {
  constexpr uint64_t kSize = 1600 * kBlock;
  Capacity& capacity = make(kSize, {99, 100});
  use(1580 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  EXPECT_FALSE(capacity.writer_outruns());
  capacity.expect_growth(20 * kBlock, 20 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  EXPECT_FALSE(capacity.writer_outruns());
  capacity.expect_growth(20 * kBlock + 1, 20 * kBlock + 1);
  EXPECT_GT(capacity.pressure_bytes(), 0u);
  EXPECT_TRUE(capacity.writer_outruns()) << "one byte more than is free";
  capacity.expect_growth(kSize, kSize);
  use(0);
  ASSERT_EQ(capacity.pressure_bytes(), 0u);
  use(1200 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u) << "a quarter of the pool at most";
  use(1201 * kBlock);
  EXPECT_GT(capacity.pressure_bytes(), 0u);
}

TEST_F(CapacityTest, WhatIsReservedEvictsNothing) {
  constexpr uint64_t kSize = 1600 * kBlock;
  Capacity& capacity = make(kSize, {90, 95});
  capacity.writers().open(kIno, 0, false);
  (void)capacity.writers().seen(kIno, 0, 100 * kBlock, 100 * kBlock);
  use(kSize);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  (void)capacity.writers().seen(kIno, 0, 100 * kBlock, 50 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 110 * kBlock) << "what is written counts";
  (void)capacity.writers().seen(kIno, 0, 100 * kBlock, 300 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  capacity.expect_growth(10 * kBlock, 10 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 10 * kBlock) << "a writer that outgrows its reservation cannot wait";
  EXPECT_TRUE(capacity.wants_eviction());
  use(kSize - 10 * kBlock);
  EXPECT_EQ(capacity.pressure_bytes(), 0u);
  EXPECT_FALSE(capacity.wants_eviction());
}

TEST_F(CapacityTest, AWaitingWriterIsNotHelpedToWhatAnotherWasPromised) {
  Capacity& capacity = make(kMiB, {99, 100});
  use(kMiB - 10 * kBlock);
  ASSERT_TRUE(capacity.writers().open(kIno, 0, 4 * kBlock, kMiB));
  {
    const Room::Demand demand(capacity.room(), Room::Whose::kWriter, 6 * kBlock);
    EXPECT_EQ(capacity.pressure_bytes(), 0u) << "both fit";
    EXPECT_TRUE(capacity.wants_eviction());
  }
  {
    const Room::Demand demand(capacity.room(), Room::Whose::kPromotion, 9 * kBlock);
    EXPECT_EQ(capacity.pressure_bytes(), 3 * kBlock);
  }
  EXPECT_EQ(capacity.pressure_bytes(), 0u) << "promises alone evict nothing";
  EXPECT_FALSE(capacity.wants_eviction());
}

TEST_F(CapacityTest, ActivityShowsInMemoryAndInNewFiles) {
  Capacity& capacity = make(kMiB);
  const uint64_t before = capacity.activity();
  EXPECT_EQ(capacity.activity(), before);
  count(counters_.creates);
  const uint64_t created = capacity.activity();
  EXPECT_NE(created, before);
  use(kBlock);
  EXPECT_NE(capacity.activity(), created);
}

}  // namespace kvcachefs::capacity_test
