#include "tier/entries/candidates.h"

#include "base/clock.h"
#include "gtest/gtest.h"

namespace kvcachefs::candidates_test {

TEST(Candidates, AFreshOneGrowsForASecond) {
  Candidates candidates("lru");
  Entry entry;
  entry.policy.ino = 7;
  candidates.fresh(entry);
  EXPECT_EQ(candidates.next_grown(now_coarse_ms()), std::nullopt);
  EXPECT_EQ(candidates.next_grown(now_coarse_ms() + 2000), 7u);
  EXPECT_EQ(candidates.next_grown(now_coarse_ms() + 2000), std::nullopt);
}

// The evictor reads the clock once for all entries, and a file may be closed after that.
TEST(Candidates, AFreshOneIsNotGrownBeforeItsTime) {
  Candidates candidates("lru");
  Entry entry;
  entry.policy.ino = 7;
  const uint64_t before_ms = now_coarse_ms() - 8;
  candidates.fresh(entry);
  EXPECT_EQ(candidates.next_grown(before_ms), std::nullopt);
}

TEST(Candidates, WhatIsPublishedOrRemovedIsNotFresh) {
  Candidates candidates("lru");
  Entry published, removed;
  candidates.fresh(published);
  candidates.fresh(removed);
  EXPECT_TRUE(candidates.has_fresh());
  candidates.publish(published);
  EXPECT_TRUE(candidates.has_fresh());
  candidates.removed(removed);
  EXPECT_FALSE(candidates.has_fresh());
}

Entry entry_of(uint64_t ino) {
  Entry entry;
  entry.policy.ino = ino;
  return entry;
}

// The evictor took the entry as a victim before its rename, because it found no other, and found it in use.
TEST(Candidates, OnePublishedWhileItIsParkedIsAsOldAsItsName) {
  for (const char* policy : {"lru", "fifo", "lfu"}) {
    Candidates candidates(policy);
    Entry older = entry_of(1), parked = entry_of(2);
    candidates.publish(older);
    candidates.fresh(parked);
    EXPECT_EQ(candidates.next_victim(false)->ino, 1u) << policy;
    candidates.park(parked);
    candidates.unpark(older);
    candidates.publish(parked);
    candidates.unpark(parked);
    EXPECT_EQ(candidates.next_victim(false)->ino, 1u) << policy;
    EXPECT_EQ(candidates.next_victim(false)->ino, 2u) << policy;
  }
}

// An entry that was found in use as a victim and then unlinked: neither its last close nor its unpinning
// makes it a victim again.
TEST(Candidates, WhatHasLostItsNameIsNotTakenInAgain) {
  Candidates candidates("lru");
  Entry parked = entry_of(1), written = entry_of(2), fresh = entry_of(3);
  for (Entry* entry : {&parked, &written}) candidates.publish(*entry);
  EXPECT_EQ(candidates.next_victim(false)->ino, 1u);
  candidates.park(parked);
  candidates.fresh(fresh);
  for (Entry* entry : {&parked, &written, &fresh}) {
    candidates.removed(*entry);
    entry->removed = true;
    candidates.unpark(*entry);
    candidates.moved(*entry, Entry::Tier::kClean);
    candidates.publish(*entry);
    EXPECT_FALSE(entry->policy.in_heap()) << entry->policy.ino;
  }
  EXPECT_FALSE(candidates.next_victim(false));
  EXPECT_FALSE(candidates.has_fresh());
}

TEST(Candidates, OnePublishedColdIsAsOldAsItsName) {
  Candidates candidates("lru");
  Entry older = entry_of(1), cold = entry_of(2);
  candidates.publish(older);
  candidates.opened(older);
  candidates.fresh(cold);
  candidates.moved(cold, Entry::Tier::kCold);
  candidates.publish(cold);
  candidates.moved(older, Entry::Tier::kCold);
  EXPECT_EQ(candidates.next_cold(), 1u);
  EXPECT_EQ(candidates.next_cold(), 2u);
}

}  // namespace kvcachefs::candidates_test
