#include "tier/entries/entries.h"

#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace kvcachefs::entries_test {

constexpr uint64_t kNoLimit = UINT64_MAX;

class Listener final : public EntryObserver {
 public:
  void created(const Entry& entry) override { say("created", entry); }
  void found(const Entry& entry) override { say("found", entry); }
  void opened(const Entry& entry, bool writer, uint64_t client) override {
    say((writer ? "opened to write by " : "opened by ") + std::to_string(client), entry);
  }
  void closed(const Entry& entry) override { say("closed", entry); }
  void stored(const Entry& entry) override { say("stored", entry); }
  void renamed(const Entry& entry) override { say("renamed", entry); }
  void published(const Entry& entry) override { say("published", entry); }
  void pinned(const Entry& entry) override { say(entry.pinned ? "pinned" : "unpinned", entry); }
  void dirtied(const Entry& entry) override { say("dirtied", entry); }
  void shrunk(const Entry& entry) override { say("shrunk", entry); }
  void spilled(const Entry& entry) override { say("spilled", entry); }
  void evicted(const Entry& entry) override { say("evicted", entry); }
  void promoted(const Entry& entry, bool asked_for) override {
    say(asked_for ? "promoted" : "prefetched", entry);
  }
  void removed(const Entry& entry, RemovalReason reason) override {
    say("removed " + std::to_string(static_cast<int>(reason)), entry);
  }
  std::vector<std::string> heard() { return std::exchange(heard_, {}); }

 private:
  void say(const std::string& event, const Entry& entry) {
    heard_.push_back(event + " " + std::to_string(entry.policy.ino));
  }
  std::vector<std::string> heard_;
};

using Heard = std::vector<std::string>;

class EntriesTest : public ::testing::Test {
 protected:
  EntriesTest() { entries_.observe(listener_); }
  // Nobody else uses the entries, so no shard is locked.
  Entry& unknown(uint64_t ino) NO_THREAD_SAFETY_ANALYSIS { return entries_.shard(ino).find_or_make(ino, 1); }
  Entry& make(uint64_t ino, bool open = true) {
    Entry& entry = unknown(ino);
    entries_.created(entry, true, open, open);
    return entry;
  }
  Entry& store(uint64_t ino, uint64_t bytes) {
    Entry& entry = make(ino);
    entry.renamed = true;
    close_writer(entry, bytes);
    return entry;
  }
  void close_writer(Entry& entry, uint64_t bytes) {
    ASSERT_TRUE(entries_.writer_closed(entry));
    ASSERT_TRUE(entries_.stored(entry, {bytes, 0}, kNoLimit));
    ASSERT_TRUE(entries_.closed(entry, false));
  }
  void erase(Entry& entry) NO_THREAD_SAFETY_ANALYSIS {
    const uint64_t ino = entry.policy.ino;
    entries_.shard(ino).erase(ino);
  }
  std::optional<uint64_t> victim() {
    const auto next = entries_.candidates().next_victim(false);
    return next ? std::optional(next->ino) : std::nullopt;
  }

  Entries entries_{"lru"};
  Listener listener_;
};

TEST_F(EntriesTest, ALifeIsHeardOfAndCounted) {
  Entry& entry = make(7);
  EXPECT_EQ(entries_.sums().files(), 1u);
  EXPECT_EQ(entries_.sums().open_files(), 1u);
  EXPECT_EQ(entries_.sums().stored_entries(Entry::Tier::kDirty), 0u) << "it is being written";
  close_writer(entry, 4096);
  EXPECT_EQ(listener_.heard(), (Heard{"created 7", "stored 7", "closed 7"})) << "its name may be temporary";
  entries_.renamed(entry, 5);
  EXPECT_EQ(listener_.heard(), (Heard{"renamed 7", "published 7"}));
  EXPECT_EQ(entries_.sums().evictable_bytes(), 4096u);
  entries_.contents().spilled(entry);
  EXPECT_EQ(entries_.sums().stored_bytes(Entry::Tier::kClean), 4096u);
  entries_.contents().evicted(entry);
  EXPECT_EQ(entries_.sums().stored_bytes(Entry::Tier::kCold), 4096u);
  EXPECT_EQ(entries_.sums().evictable_bytes(), 0u);
  entries_.contents().moves(entry, DiskFacts::Move::kPromoting);
  entries_.contents().moves(entry, DiskFacts::Move::kNone);
  entries_.contents().promoted(entry, false);
  entries_.contents().waiters_told(entry);
  entries_.opened(entry, false, false, 77);
  EXPECT_EQ(entries_.sums().evictable_bytes(), 0u) << "it is open";
  EXPECT_TRUE(entries_.closed(entry, false));
  entries_.contents().shrunk(entry);
  entries_.removed(entry, RemovalReason::kEvicted);
  EXPECT_EQ(listener_.heard(), (Heard{"spilled 7", "evicted 7", "prefetched 7", "opened by 77 7", "closed 7",
                                      "shrunk 7", "removed 2 7"}));
  EXPECT_EQ(entries_.sums().files(), 0u);
  EXPECT_EQ(entries_.sums().evictable_bytes(), 0u);
  EXPECT_EQ(entries_.sums().stored_entries(Entry::Tier::kClean), 0u);
}

TEST_F(EntriesTest, WhatIsOpenedToWriteHasNoTrueCopy) {
  Entry& entry = store(7, 4096);
  entries_.contents().spilled(entry);
  const uint32_t before = entry.disk.content_epoch;
  entries_.contents().dirtied(entry);
  entries_.opened(entry, true, false);
  EXPECT_EQ(listener_.heard().back(), "opened to write by 0 7");
  EXPECT_NE(entry.disk.content_epoch, before);
  EXPECT_EQ(entries_.sums().stored_entries(Entry::Tier::kDirty), 1u);
  EXPECT_EQ(entries_.sums().stored_entries(Entry::Tier::kClean), 0u);
}

TEST_F(EntriesTest, APinCountsOnceAndEndsWhereItDoesNotFit) {
  Entry& small = store(7, 4096);
  Entry& large = store(8, 8192);
  EXPECT_TRUE(entries_.pinned(small, 0, 8192));
  EXPECT_FALSE(entries_.pinned(large, 0, 8192));
  EXPECT_FALSE(large.pinned);
  EXPECT_EQ(entries_.sums().pinned_bytes(), 4096u);
  EXPECT_EQ(victim(), 8u);
  EXPECT_EQ(victim(), std::nullopt) << "a pinned entry is no victim";
  entries_.contents().dirtied(small);
  entries_.opened(small, true, false);
  EXPECT_TRUE(entries_.writer_closed(small));
  (void)listener_.heard();
  EXPECT_FALSE(entries_.stored(small, {16384, 0}, 8192)) << "it has grown";
  EXPECT_EQ(listener_.heard(), (Heard{"unpinned 7", "stored 7"}));
  EXPECT_EQ(entries_.sums().pinned_bytes(), 0u);
  entries_.closed(small, false);
}

// Reading a hole by a mapping gives it memory, and nothing tells the daemon of that.
TEST_F(EntriesTest, APinCountsForAllThatItsFileCanTake) {
  Entry& sparse = store(7, 4096);
  EXPECT_FALSE(entries_.pinned(sparse, 65536, 8192));
  ASSERT_TRUE(entries_.pinned(sparse, 65536, 65536));
  EXPECT_EQ(entries_.sums().pinned_bytes(), 65536u);
  EXPECT_TRUE(entries_.resized(sparse, {4096, 8192}, 65536));
  EXPECT_EQ(entries_.sums().pinned_bytes(), 8192u);
  EXPECT_FALSE(entries_.resized(sparse, {4096, 131072}, 65536));
  EXPECT_EQ(entries_.sums().pinned_bytes(), 0u);
  EXPECT_EQ(victim(), 7u);
}

TEST_F(EntriesTest, APinOfANamelessFileCountsFromItsFirstName) {
  for (const uint64_t ino : {7, 8}) {
    Entry& entry = unknown(ino);
    entries_.created(entry, false, true, true);
    ASSERT_TRUE(entries_.writer_closed(entry));
    ASSERT_TRUE(entries_.pinned(entry, 0, 8192));
    EXPECT_TRUE(entries_.stored(entry, {8192, 8192}, 8192));
    EXPECT_TRUE(entries_.closed(entry, false));
    EXPECT_EQ(entries_.named(entry, 8192), ino == 7) << "both were pinned while none counted";
    EXPECT_EQ(entries_.sums().pinned_bytes(), 8192u);
  }
  EXPECT_EQ(victim(), 8u);
}

// A reader's O_CREAT: the file is stored when nobody has it open any more.
TEST_F(EntriesTest, WhatIsUnpinnedAtItsEndIsACandidate) {
  Entry& entry = unknown(7);
  entries_.created(entry, true, true, false);
  ASSERT_TRUE(entries_.pinned(entry, 0, 4096));
  entries_.renamed(entry, 5);
  ASSERT_TRUE(entries_.closed(entry, false));
  EXPECT_FALSE(entries_.stored(entry, {8192, 0}, 4096));
  EXPECT_EQ(entries_.sums().evictable_bytes(), 8192u);
  EXPECT_EQ(victim(), 7u);
}

TEST_F(EntriesTest, ANamelessFileCountsFromItsFirstName) {
  Entry& entry = unknown(7);
  entries_.created(entry, false, true, true);
  EXPECT_EQ(entries_.sums().files(), 0u);
  ASSERT_TRUE(entries_.writer_closed(entry));
  EXPECT_TRUE(entries_.stored(entry, {4096, 0}, kNoLimit));
  EXPECT_EQ(entries_.sums().stored_entries(Entry::Tier::kDirty), 0u);
  (void)listener_.heard();
  EXPECT_TRUE(entries_.named(entry, kNoLimit));
  EXPECT_EQ(listener_.heard(), Heard{"renamed 7"});
  EXPECT_EQ(entries_.sums().files(), 1u);
  EXPECT_TRUE(entries_.closed(entry, false));
}

// What other processes have left: one entry is open, one closed and cold, one only on the disk.
TEST_F(EntriesTest, WhatIsFoundIsCounted) {
  Entry& open = unknown(1);
  Entry& cold = unknown(2);
  Entry& restored = unknown(3);
  Entry& directory = unknown(4);
  entries_.found(open, {.open_count = 2, .writer_count = 1, .charged_bytes = 100});
  entries_.found(cold, {.charged_bytes = 200, .cold = true, .pinned = true});
  entries_.found_stored(cold);
  entries_.contents().found_copy(cold, 200);
  entries_.found(directory, {.named = false, .stage = Entry::Stage::kOther});
  EXPECT_EQ(listener_.heard(), (Heard{"found 1", "found 2", "published 2", "found 2", "found 4"}));
  EXPECT_TRUE(directory.removed && !directory.is_file());
  entries_.found(restored, {.charged_bytes = 400, .cold = true, .stage = Entry::Stage::kCandidate});
  entries_.found_stored(restored);
  EXPECT_EQ(listener_.heard(), (Heard{"found 3", "published 3"}));
  EXPECT_EQ(entries_.sums().files(), 3u);
  EXPECT_EQ(entries_.sums().open_files(), 1u);
  EXPECT_EQ(entries_.sums().pinned_bytes(), 200u);
  EXPECT_EQ(entries_.sums().stored_bytes(Entry::Tier::kCold), 600u);
  EXPECT_EQ(entries_.candidates().next_cold(), 3u) << "the other is pinned";
  EXPECT_EQ(entries_.candidates().next_cold(), std::nullopt);
}

TEST_F(EntriesTest, EveryObserverHears) {
  Listener other;
  entries_.observe(other);
  store(7, 4096);
  EXPECT_EQ(other.heard(), (Heard{"created 7", "stored 7", "published 7", "closed 7"}));
  EXPECT_EQ(listener_.heard(), (Heard{"created 7", "stored 7", "published 7", "closed 7"}));
}

// Random lives: after each event the sums are those of a count over all entries.
class EntriesModel : public EntriesTest {
 protected:
  using Tier = Entry::Tier;
  void expect_sums() {
    uint64_t evictable = 0, even_held = 0, pinned = 0, files = 0, open = 0;
    std::map<Tier, std::pair<uint64_t, uint64_t>> stored;
    for (const Entry* entry : alive_) {
      const bool counts = entry->stage >= Entry::Stage::kFresh;
      if (entry->open_count == 0 && counts && !entry->pinned && entry->tier != Tier::kCold) {
        even_held += entry->memory.charged_bytes;
        if (!held_.contains(entry)) evictable += entry->memory.charged_bytes;
      }
      if (entry->pinned) pinned += entry->pin_bytes();
      if (counts) ++stored[entry->tier].first, stored[entry->tier].second += entry->memory.charged_bytes;
      ++files, open += entry->open_count > 0 ? 1 : 0;
    }
    EXPECT_EQ(entries_.sums().evictable_bytes(), evictable);
    EXPECT_EQ(entries_.sums().evictable_bytes(true), even_held);
    EXPECT_EQ(entries_.sums().pinned_bytes(), pinned);
    EXPECT_EQ(entries_.sums().files(), files);
    EXPECT_EQ(entries_.sums().open_files(), open);
    for (const Tier tier : {Tier::kDirty, Tier::kClean, Tier::kCold}) {
      EXPECT_EQ(entries_.sums().stored_entries(tier), stored[tier].first) << tier_name(tier);
      EXPECT_EQ(entries_.sums().stored_bytes(tier), stored[tier].second) << tier_name(tier);
    }
  }
  void step(std::mt19937_64& random) {
    if (alive_.size() < 8) return alive_.push_back(&make(++last_ino_, random() % 4 != 0));
    const size_t which = random() % alive_.size();
    Entry& entry = *alive_[which];
    const bool idle = entry.open_count == 0 && !entry.disk.promoting();
    const uint64_t bytes = random() % 16 * 4096;
    switch (random() % 11) {
      case 10:
        if (entry.closed())
          entries_.contents().held(entry, !held_.erase(&entry) && held_.insert(&entry).second);
        return;
      case 0:
        return entry.tier != Tier::kCold ? open(entry, random() % 2 == 0) : void();
      case 1:
        return entry.open_count > 0 ? close(entry, bytes) : void();
      case 2:
        return entries_.renamed(entry, static_cast<uint32_t>(random()));
      case 3:
        return idle && entry.is_stored() && entry.tier == Tier::kDirty ? entries_.contents().spilled(entry)
                                                                       : void();
      case 4:
        if (idle && entry.tier == Tier::kClean) held_.erase(&entry), entries_.contents().evicted(entry);
        return;
      case 5:
        return entry.tier == Tier::kCold ? promote(entry, random() % 2 == 0) : void();
      case 6:
        return entry.pinned ? entries_.unpinned(entry) : (void)entries_.pinned(entry, 0, 10 * 4096);
      case 7:
        return idle ? remove_one(which) : void();
      case 8:
        return entry.tier != Tier::kCold ? entries_.contents().charged(entry, bytes) : void();
      default:
        return entry.tier != Tier::kCold ? entries_.contents().dirtied(entry) : void();
    }
  }

 private:
  void open(Entry& entry, bool writer) {
    held_.erase(&entry);
    if (writer) entries_.contents().dirtied(entry);
    entries_.opened(entry, writer, false);
  }
  void close(Entry& entry, uint64_t bytes) {
    const bool writes = entry.writer_count == entry.open_count;
    if (writes && entries_.writer_closed(entry)) (void)entries_.stored(entry, {bytes, 0}, 10 * 4096);
    if (entries_.closed(entry, false) && entry.stage == Entry::Stage::kWritten)
      (void)entries_.stored(entry, {bytes, 0}, 10 * 4096);
  }
  void promote(Entry& entry, bool asked_for) {
    entries_.contents().moves(entry, DiskFacts::Move::kPromoting);
    entries_.contents().moves(entry, DiskFacts::Move::kNone);
    entries_.contents().promoted(entry, asked_for);
    entries_.contents().waiters_told(entry);
  }
  void remove_one(size_t which) {
    Entry& entry = *alive_[which];
    alive_.erase(alive_.begin() + static_cast<ptrdiff_t>(which));
    held_.erase(&entry);
    entries_.removed(entry, RemovalReason::kDeleted);
    erase(entry);
  }
  std::vector<Entry*> alive_;
  std::set<const Entry*> held_;
  uint64_t last_ino_ = 0;
};

TEST_F(EntriesModel, TheSumsAreTrueAfterEveryEvent) {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20'000 && !HasFailure(); ++i) {
    step(random);
    expect_sums();
  }
  EXPECT_GT(listener_.heard().size(), 1000u);
}

#ifdef KVCACHEFS_CHECK_STATES
// Each test leaves an entry in a state that no life comes to.
class ImpossibleState : public EntriesTest {
 protected:
  // It is in the catalog, with a copy.
  Entry& store_clean() {
    Entry& entry = store(7, 4096);
    entry.disk.node_id = 3;
    (void)entries_.contents().copied(entry, {});
    entries_.contents().spilled(entry);
    return entry;
  }
  Entry& store_cold() {
    Entry& entry = store_clean();
    entries_.contents().evicted(entry);
    return entry;
  }
};

TEST_F(ImpossibleState, MoreWritersThanOpens) {
  EXPECT_DEATH(entries_.found(unknown(7), {.writer_count = 1}), "more writers than opens");
}

TEST_F(ImpossibleState, MoreOpensFromTheDiskThanOpens) {
  EXPECT_DEATH(entries_.found(unknown(7), {.direct_count = 1}), "more opens from the disk than opens");
}

TEST_F(ImpossibleState, ACopyOfWhatIsBeingWritten) {
  Entry& entry = store_clean();
  EXPECT_DEATH(entries_.opened(entry, true, false), "a copy of what is being written");
}

TEST_F(ImpossibleState, PromotedInMemory) {
  Entry& entry = store_clean();
  EXPECT_DEATH(entries_.contents().moves(entry, DiskFacts::Move::kPromoting), "promoted in memory");
}

TEST_F(ImpossibleState, SpilledWithoutMemory) {
  Entry& entry = store_cold();
  EXPECT_DEATH(entries_.contents().moves(entry, DiskFacts::Move::kSpilling), "spilled without memory");
}

TEST_F(ImpossibleState, AwaitedWithoutMemory) {
  Entry& entry = store_cold();
  entries_.contents().promoted(entry, true);
  EXPECT_DEATH(entries_.contents().evicted(entry), "awaited without memory");
}

TEST_F(ImpossibleState, TheStateOfAFileOfWhatIsNone) {
  EXPECT_DEATH(entries_.opened(unknown(7), false, false), "the state of a file, of what is none");
  EXPECT_DEATH(entries_.pinned(unknown(8), 0, kNoLimit), "the state of a file, of what is none");
  EXPECT_DEATH(entries_.contents().found_copy(unknown(9), 4096), "the state of a file, of what is none");
}

TEST_F(ImpossibleState, NoCopy) {
  Entry& entry = store(7, 4096);
  entry.disk.node_id = 3;
  EXPECT_DEATH(entries_.contents().spilled(entry), "no copy");
}

TEST_F(ImpossibleState, ServedFromADiskThatMayDropIt) {
  Entry& entry = store_cold();
  EXPECT_DEATH(entries_.opened(entry, false, true), "served from the disk, which may drop it");
  (void)entries_.contents().held_on_disk(entry, {});
  entries_.opened(entry, false, true);
  EXPECT_TRUE(entries_.closed(entry, true));
}
#endif

}  // namespace kvcachefs::entries_test
