// All entries of a pool by inode number, in 64 shards, each with its lock (order: ARCHITECTURE.md). Any
// thread. The address of an Entry is stable until it is erased. A lookup that finds nothing returns null;
// nothing else fails.
#pragma once

#include <array>
#include <cstdint>
#include <unordered_map>

#include "base/check.h"
#include "base/mutex.h"
#include "tier/entries/entry.h"
#include "tier/survivors/kept_inodes.h"

namespace kvcachefs {

struct EntryTable {
  static constexpr size_t kShards = 64;

  struct Shard {
    // At 1 a million entries take 15.7 bytes each for their buckets, at 2 half of it, and a lookup passes
    // half an entry more, of some 0.1 us, of the 10 us that an open takes.
    Shard() { entries.max_load_factor(2); }

    Mutex mutex;
    std::unordered_map<uint64_t, Entry> entries GUARDED_BY(mutex);
    // Descriptors that keep inodes without a name alive until the kernel forgets them.
    std::unordered_map<uint64_t, KeptByDescriptor> kept GUARDED_BY(mutex);

    Entry* find(uint64_t ino) REQUIRES(mutex) {
      auto found = entries.find(ino);
      return found == entries.end() ? nullptr : &found->second;
    }
    Entry& find_or_make(uint64_t ino, uint32_t generation) REQUIRES(mutex) {
      auto [found, made] = entries.try_emplace(ino);
      if (made) {
        found->second.policy.ino = ino;
        found->second.generation = generation;
      }
      return found->second;
    }
    void erase(uint64_t ino) REQUIRES(mutex) {
      kept.erase(ino);
      const auto found = entries.find(ino);
      if (found == entries.end()) return;
      KVCACHEFS_CHECK(!found->second.policy.in_heap());
      entries.erase(found);
    }
  };

  std::array<Shard, kShards> shards;
};

// An entry whose shard is held as long as this lives; null if there is no such entry.
class SCOPED_CAPABILITY LockedEntry {
 public:
  LockedEntry(EntryTable::Shard& shard, uint64_t ino) ACQUIRE(shard.mutex) : mutex_(shard.mutex) {
    shard.mutex.lock();
    entry_ = shard.find(ino);
  }
  ~LockedEntry() RELEASE() { mutex_.unlock(); }
  LockedEntry(const LockedEntry&) = delete;
  LockedEntry& operator=(const LockedEntry&) = delete;
  operator Entry*() const { return entry_; }
  Entry* operator->() const { return entry_; }

 private:
  Mutex& mutex_;
  Entry* entry_;
};

// Holds the shards of two inodes, which may be the same shard, locked in ascending order.
class SCOPED_CAPABILITY ShardPairLock {
 public:
  // The analysis cannot follow that the two may be one.
  ShardPairLock(EntryTable::Shard& a, EntryTable::Shard& b)
      ACQUIRE(a.mutex, b.mutex) NO_THREAD_SAFETY_ANALYSIS : first_(&a < &b ? a : b),
                                                            second_(&a < &b ? b : a) {
    first_.mutex.lock();
    if (&first_ != &second_) second_.mutex.lock();
  }
  ~ShardPairLock() RELEASE() NO_THREAD_SAFETY_ANALYSIS {
    if (&first_ != &second_) second_.mutex.unlock();
    first_.mutex.unlock();
  }
  ShardPairLock(const ShardPairLock&) = delete;
  ShardPairLock& operator=(const ShardPairLock&) = delete;

 private:
  EntryTable::Shard& first_;
  EntryTable::Shard& second_;
};

}  // namespace kvcachefs
