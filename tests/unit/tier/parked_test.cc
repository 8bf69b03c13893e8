#include "tier/entries/parked.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/support/mount.h"

namespace kvcachefs::parked_test {

using test::eventually;

constexpr uint64_t kLastPauseMs = 100;  // of an entry that was in use at each try
constexpr int kTries = 5;

class ParkedTest : public ::testing::Test {
 protected:
  // Nobody else uses the entries, so that no shard is locked, but where a test says so.
  Entry& entry(uint64_t ino) NO_THREAD_SAFETY_ANALYSIS { return entries_.shard(ino).find_or_make(ino, 1); }
  // Candidates for eviction, the least recently used first.
  void store(const std::vector<uint64_t>& inodes) {
    for (const uint64_t ino : inodes) {
      entries_.created(entry(ino), true, false, false);
      entries_.published(entry(ino));
    }
  }
  uint64_t take() {
    const auto victim = entries_.candidates().next_victim(false);
    return victim ? victim->ino : 0;
  }
  void park_next(bool recent) { parked_.park(entry(take()), recent); }
  void use_all_tries(uint64_t ino) {
    for (int tries = 1; tries < kTries; ++tries) parked_.park(entry(ino), false);
    EXPECT_TRUE(eventually([&] {
      parked_.retry(false);
      return !parked_.more_to_come();
    }));
  }

  Entries entries_{"lru"};
  Parked parked_{entries_};
};

TEST_F(ParkedTest, AVictimThatWasJustLookedUpComesBackInItsTime) {
  store({1});
  const uint64_t begun_ms = now_coarse_ms();
  park_next(true);
  EXPECT_FALSE(parked_.more_to_come()) << "others can go meanwhile";
  uint64_t back = 0;
  EXPECT_TRUE(eventually([&] {
    parked_.retry(false);
    return (back = take()) != 0;
  }));
  EXPECT_EQ(back, 1u);
  EXPECT_GE(now_coarse_ms(), begun_ms + Parked::kRecentMs);
}

TEST_F(ParkedTest, WhereNothingElseCanGoItComesBackAtOnce) {
  store({1});
  park_next(true);
  parked_.retry(true);
  EXPECT_EQ(take(), 1u);
}

TEST_F(ParkedTest, OneThatComesBackHasItsPlaceInTheOrderAgain) {
  store({1, 2, 3});
  park_next(true);
  park_next(true);
  parked_.retry(true);
  EXPECT_EQ(take(), 1u);
  EXPECT_EQ(take(), 2u);
  EXPECT_EQ(take(), 3u);
}

// The holder of an entry that is in use may have closed it already, at first.
TEST_F(ParkedTest, EachTryThatFindsItInUseIsFollowedByALongerPause) {
  store({1});
  EXPECT_FALSE(parked_.more_to_come());
  for (const uint64_t pause_ms : {1, 4, 16}) {
    const uint64_t begun_ms = now_coarse_ms();
    park_next(false);
    EXPECT_TRUE(parked_.more_to_come());
    ASSERT_TRUE(eventually([&] {
      parked_.retry(true);
      return !parked_.more_to_come();
    }));
    EXPECT_GE(now_coarse_ms(), begun_ms + pause_ms);
  }
}

TEST_F(ParkedTest, AfterTheLastPauseNobodyIsToldToWaitForIt) {
  store({1});
  ASSERT_EQ(take(), 1u);
  use_all_tries(1);
  const uint64_t begun_ms = now_coarse_ms();
  park_next(false);
  EXPECT_FALSE(parked_.more_to_come()) << "its holder may keep it for ever";
  uint64_t back = 0;
  EXPECT_TRUE(eventually([&] {
    parked_.retry(true);
    return (back = take()) != 0;
  }));
  EXPECT_GE(now_coarse_ms(), begun_ms + kLastPauseMs);
  parked_.park(entry(back), false);
  EXPECT_FALSE(parked_.more_to_come()) << "nor at the next try";
}

TEST_F(ParkedTest, AnOpenBeginsThePausesAnew) {
  store({1});
  ASSERT_EQ(take(), 1u);
  use_all_tries(1);
  entries_.opened(entry(1), false, false);
  (void)entries_.closed(entry(1), false);
  park_next(false);
  EXPECT_TRUE(parked_.more_to_come());
}

TEST_F(ParkedTest, AnOpenOneComesBackWithItsLastClose) {
  store({1});
  park_next(true);
  entries_.opened(entry(1), false, false);
  parked_.retry(true);
  EXPECT_EQ(take(), 0u);
  (void)entries_.closed(entry(1), false);
  EXPECT_EQ(take(), 1u);
}

TEST_F(ParkedTest, APinnedOneComesBackWhenItIsUnpinned) {
  store({1});
  park_next(true);
  ASSERT_TRUE(entries_.pinned(entry(1), 0, 0));
  parked_.retry(true);
  EXPECT_EQ(take(), 0u);
  entries_.unpinned(entry(1));
  EXPECT_EQ(take(), 1u);
}

TEST_F(ParkedTest, OneOnItsWayToTheDiskComesBackFromThere) {
  store({1});
  park_next(true);
  entries_.contents().moves(entry(1), DiskFacts::Move::kSpilling);
  parked_.retry(true);
  EXPECT_EQ(take(), 0u);
  entries_.contents().moves(entry(1), DiskFacts::Move::kNone);
  entries_.contents().spill_asked(entry(1), DiskFacts::Spill::kNotAsked);
  EXPECT_EQ(take(), 1u);
}

TEST_F(ParkedTest, OneThatIsGoneDoesNotComeBack) {
  store({1, 2});
  park_next(true);
  park_next(true);
  {
    EntryTable::Shard& shard = entries_.shard(1);
    MutexLock lock(shard.mutex);
    entries_.removed(*shard.find(1), RemovalReason::kDeleted);
    shard.erase(1);
  }
  {
    EntryTable::Shard& shard = entries_.shard(2);
    MutexLock lock(shard.mutex);
    entries_.removed(*shard.find(2), RemovalReason::kDeleted);  // the kernel still knows it
  }
  parked_.retry(true);
  EXPECT_EQ(take(), 0u);
}

// Else a search for victims would end in vain while another thread brings them back.
TEST_F(ParkedTest, MoreIsToComeWhileAnotherThreadBringsThemBack) {
  store({1});
  park_next(true);
  std::thread other;
  {
    EntryTable::Shard& shard = entries_.shard(1);
    MutexLock lock(shard.mutex);
    other = std::thread([&] { parked_.retry(true); });
    EXPECT_TRUE(eventually([&] { return parked_.more_to_come(); }));
  }
  other.join();
  EXPECT_FALSE(parked_.more_to_come());
  EXPECT_EQ(take(), 1u);
}

}  // namespace kvcachefs::parked_test
