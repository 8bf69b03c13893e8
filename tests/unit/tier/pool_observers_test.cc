// What is counted of an entry's life, and what of it the kernel has to hear.
#include "tier/pool/pool_observers.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include "tests/support/pool_parts.h"
#include "tier/entries/entries.h"

namespace kvcachefs::pool_observers_test {

using Inodes = std::vector<uint64_t>;

constexpr uint16_t kPool = 3;
constexpr uint64_t kIno = 7;
constexpr uint64_t kBytes = 8192;

class PoolObserversTest : public ::testing::Test {
 protected:
  PoolObserversTest() {
    entries_.observe(counting_);
    entries_.observe(kernel_);
  }
  // Nobody else uses the entries, so no shard is locked.
  Entry& create(uint64_t ino = kIno) NO_THREAD_SAFETY_ANALYSIS {
    Entry& entry = entries_.shard(ino).find_or_make(ino, 1);
    entries_.created(entry, true, true, true);
    return entry;
  }
  Entry& store(uint64_t ino = kIno) {
    Entry& entry = create(ino);
    EXPECT_TRUE(entries_.writer_closed(entry));
    EXPECT_TRUE(entries_.stored(entry, {kBytes, kBytes}, UINT64_MAX));
    EXPECT_TRUE(entries_.closed(entry, false));
    entries_.published(entry);
    return entry;
  }
  Entry& make_cold(Entry& entry) {
    entries_.contents().spilled(entry);
    entries_.contents().evicted(entry);
    return entry;
  }
  void promote(Entry& entry, bool asked_for) {
    entries_.contents().promoted(entry, asked_for);
    entries_.contents().waiters_told(entry);
  }
  void open(Entry& entry, bool writer) { entries_.opened(entry, writer, false); }
  void remove(Entry& entry, RemovalReason reason) { entries_.removed(entry, reason); }
  static Entry& known(Entry& entry) {
    entry.kernel.lookup_count = 1;
    return entry;
  }
  Inodes heard() {
    for (const uint16_t pool : heard_.changed_pools) EXPECT_EQ(pool, kPool);
    return std::exchange(heard_.changes, {});
  }

  Entries entries_{"lru"};
  PoolCounters counters_;
  test::Heard heard_;
  test::HeldFiles backing_;
  CountingObserver counting_{counters_};
  KernelObserver kernel_{heard_, kPool, backing_};
};

TEST_F(PoolObserversTest, EachOpenOfWhatWasThereIsAHit) {
  Entry& entry = store();
  EXPECT_EQ(counters_.creates, 1u);
  EXPECT_EQ(counters_.opens_hit, 0u) << "its creation is none";
  open(entry, false);
  open(entry, true);
  EXPECT_EQ(counters_.opens_hit, 2u);
  EXPECT_EQ(counters_.prefetch_useful, 0u);
}

TEST_F(PoolObserversTest, APrefetchIsUsefulOnceOrWasted) {
  Entry& opened = make_cold(store(1));
  EXPECT_EQ(counters_.prefetch_wasted, 0u) << "it was never read ahead";
  promote(opened, false);
  EXPECT_EQ(counters_.prefetch_useful, 0u) << "no open has come";
  open(opened, false);
  open(opened, false);
  EXPECT_EQ(counters_.prefetch_useful, 1u);
  Entry& evicted = make_cold(store(2));
  promote(evicted, false);
  entries_.contents().evicted(evicted);
  EXPECT_EQ(counters_.prefetch_wasted, 1u);
  promote(evicted, true);
  open(evicted, false);
  EXPECT_EQ(counters_.prefetch_useful, 1u) << "an open had asked for it";
  EXPECT_EQ(counters_.evictions, 3u);
}

TEST_F(PoolObserversTest, WhatTheirUsersRemoveIsNoDiscard) {
  remove(store(1), RemovalReason::kDeleted);
  remove(store(2), RemovalReason::kReplaced);
  EXPECT_EQ(counters_.discards, 0u);
  EXPECT_EQ(counters_.discarded_bytes, 0u);
  EXPECT_EQ(counters_.disk_discards, 0u);
}

TEST_F(PoolObserversTest, ALastCopyThatGoesIsADiscard) {
  remove(store(1), RemovalReason::kEvicted);
  EXPECT_EQ(counters_.discards, 1u);
  EXPECT_EQ(counters_.discarded_bytes, kBytes);
  EXPECT_EQ(counters_.disk_discards, 0u) << "memory was wanted, not the disk";
  remove(make_cold(store(2)), RemovalReason::kDiscarded);
  remove(make_cold(store(3)), RemovalReason::kDamaged);
  remove(make_cold(store(4)), RemovalReason::kExpired);
  remove(make_cold(store(5)), RemovalReason::kWithGroup);
  EXPECT_EQ(counters_.discards, 5u);
  EXPECT_EQ(counters_.discarded_bytes, 5 * kBytes) << "a cold entry's are those that it had";
  EXPECT_EQ(counters_.disk_discards, 1u);
  EXPECT_EQ(counters_.damaged_discards, 1u);
  EXPECT_EQ(counters_.expired, 1u);
  EXPECT_EQ(counters_.group_discards, 1u);
  EXPECT_EQ(counters_.evictions, 4u) << "those of the cold ones";
}

TEST_F(PoolObserversTest, TheKernelHearsOfTheFirstWriter) {
  Entry& entry = known(store());
  open(entry, false);
  EXPECT_EQ(heard(), Inodes());
  open(entry, true);
  EXPECT_EQ(heard(), Inodes{kIno});
  open(entry, false);
  open(entry, true);
  EXPECT_EQ(heard(), Inodes()) << "it knows that the file may be written";
}

TEST_F(PoolObserversTest, TheKernelHearsOfBlocksThatGoAndCome) {
  Entry& entry = known(make_cold(store()));
  promote(entry, false);
  EXPECT_EQ(heard(), Inodes{kIno});
  entries_.contents().evicted(entry);
  EXPECT_EQ(heard(), Inodes{kIno});
  promote(entry, true);
  EXPECT_EQ(heard(), Inodes()) << "an open with passthrough asks anew";
  entries_.contents().evicted(entry);
  (void)heard();
  backing_.daemon_io = true;
  promote(entry, true);
  EXPECT_EQ(heard(), Inodes{kIno}) << "in daemon I/O it may read nothing";
  entries_.contents().shrunk(entry);
  EXPECT_EQ(heard(), Inodes{kIno});
}

TEST_F(PoolObserversTest, TheKernelHearsNothingOfWhatItDoesNotKnow) {
  backing_.daemon_io = true;
  Entry& entry = store();
  open(entry, true);
  EXPECT_TRUE(entries_.writer_closed(entry));
  EXPECT_TRUE(entries_.closed(entry, false));
  make_cold(entry);
  promote(entry, false);
  entries_.contents().evicted(entry);
  promote(entry, true);
  EXPECT_EQ(heard(), Inodes());
}

TEST_F(PoolObserversTest, ARemovalIsToldByThoseWhoRemove) {
  remove(known(store()), RemovalReason::kEvicted);
  EXPECT_EQ(heard(), Inodes());
  EXPECT_TRUE(heard_.gone.empty());
}

}  // namespace kvcachefs::pool_observers_test
