// A pool that gives way to its host, as its Capacity sees it.
#include "tier/pool/pool_limit.h"

#include <fcntl.h>

#include "tests/support/capacity_test.h"

namespace kvcachefs::pool_limit_test {

using test::CapacityTest;
constexpr uint64_t kBlock = 4096;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kGiB = uint64_t{1} << 30;
constexpr auto kLong = std::chrono::minutes(10);

class PoolLimitTest : public CapacityTest {};

TEST_F(PoolLimitTest, AnEntryOfUnknownSizeGetsTheMostThatMayBeLearned) {
  EXPECT_EQ(make(64 * kMiB).reservation().end, 8 * kMiB);
  Capacity& capacity = make(16 * kGiB);
  EXPECT_EQ(capacity.reservation().end, 256 * kMiB);
  capacity.stored(kMiB);
  EXPECT_EQ(capacity.reservation().end, kMiB);
}

TEST_F(PoolLimitTest, GivesWhatItIsAskedForAndNoMore) {
  for (const Watermarks marks : {Watermarks{95, 98}, Watermarks{1, 100}, Watermarks{50, 80}}) {
    Capacity& capacity = make(64 * kMiB, marks);
    use(20 * kMiB);
    EXPECT_EQ(capacity.pressure_bytes(), 0u);
    capacity.give_way(2 * kMiB);
    evictor_.wait(kLong);  // it was woken
    EXPECT_EQ(capacity.pressure_bytes(), 2 * kMiB);
    EXPECT_EQ(capacity.leaving_bytes(), 2 * kMiB);
    use(18 * kMiB);
    EXPECT_EQ(capacity.pressure_bytes(), 0u);
    EXPECT_EQ(capacity.leaving_bytes(), 0u);
    EXPECT_EQ(capacity.size_bytes(), 64 * kMiB);
    EXPECT_EQ(capacity.limit().bytes(), 18 * kMiB + 18 * kMiB / 8);
    EXPECT_TRUE(capacity.has_room(2 * kMiB)) << "writers get a little before others have left";
    EXPECT_FALSE(capacity.has_room(3 * kMiB)) << "the tmpfs would have it";
    use(19 * kMiB);
    EXPECT_EQ(capacity.pressure_bytes(), 0u);
    use(20 * kMiB);
    EXPECT_EQ(capacity.pressure_bytes(), 2 * kMiB);
    capacity.limit().set_ceiling(PoolLimit::kNone);
    EXPECT_EQ(capacity.pressure_bytes(), 0u);
    EXPECT_TRUE(capacity.has_room(40 * kMiB));
  }
}

TEST_F(PoolLimitTest, WhatHasNotLeftYetIsNotAskedForAgain) {
  Capacity& capacity = make(64 * kMiB);
  use(30 * kMiB);
  capacity.give_way(10 * kMiB);
  capacity.give_way(5 * kMiB);
  EXPECT_EQ(capacity.leaving_bytes(), 15 * kMiB);
  capacity.give_way(0);
  EXPECT_EQ(capacity.limit().ceiling_bytes(), 15 * kMiB);
  use(5 * kMiB);
  capacity.give_way(kMiB);
  EXPECT_EQ(capacity.limit().ceiling_bytes(), 4 * kMiB);
}

TEST_F(PoolLimitTest, AWriterWaitsForRoomBelowTheLimit) {
  Capacity& capacity = make(64 * kMiB);
  use(40 * kMiB);
  capacity.give_way(20 * kMiB);
  EXPECT_EQ(capacity.wait_for_room(kMiB, {.may_wait = false}), Waited::kWouldWait);
  test::AnsweringEvictor evictor(evictor_, [&] {
    if (capacity.pressure_bytes() > 0) use(20 * kMiB);
    capacity.room().room_made();
  });
  EXPECT_EQ(capacity.wait_for_room(kMiB, {}), Waited::kRoom);
}

}  // namespace kvcachefs::pool_limit_test
