// What follows from the events in an entry's life (tier/entries/entry_observer.h) outside of the pool: its
// counters, and what the kernel has to hear. What only a part of the pool knows it counts itself: bytes that
// were moved, and names that users removed, of which an entry may have several. Threads and failure: as
// EntryObserver.
#pragma once

#include "tier/counters.h"
#include "tier/entries/entry_observer.h"
#include "tier/pool/kernel_side.h"

namespace kvcachefs {

class CountingObserver final : public EntryObserver {
 public:
  explicit CountingObserver(PoolCounters& counters) : counters_(counters) {}
  void created(const Entry&) override { count(counters_.creates); }
  void opened(const Entry& entry, bool, uint64_t) override {
    count(counters_.opens_hit);
    if (entry.disk.prefetched) count(counters_.prefetch_useful);
  }
  void evicted(const Entry& entry) override {
    count(counters_.evictions);
    if (entry.disk.prefetched) count(counters_.prefetch_wasted);
  }
  void removed(const Entry& entry, RemovalReason reason) override {
    if (reason == RemovalReason::kDeleted || reason == RemovalReason::kReplaced) return;
    count(counters_.discards);
    count(counters_.discarded_bytes, entry.memory.charged_bytes);
    if (auto* const counter = counter_of(reason)) count(*counter);
  }

 private:
  // nullptr: `discards` less the others is their number.
  std::atomic<uint64_t>* counter_of(RemovalReason reason) {
    switch (reason) {
      case RemovalReason::kDiscarded:
        return &counters_.disk_discards;
      case RemovalReason::kExpired:
        return &counters_.expired;
      case RemovalReason::kWithGroup:
        return &counters_.group_discards;
      case RemovalReason::kDamaged:
        return &counters_.damaged_discards;
      case RemovalReason::kDeleted:
      case RemovalReason::kReplaced:
      case RemovalReason::kEvicted:
        break;
    }
    return nullptr;
  }

  PoolCounters& counters_;
};

// The kernel's attributes of an inode are out of date when its blocks went or came, and while a process may
// write it through a mapping.
class KernelObserver final : public EntryObserver {
 public:
  KernelObserver(DiscardListener& listener, uint16_t pool, const BackingStore& backing_store)
      : listener_(listener), pool_(pool), backing_store_(backing_store) {}
  void opened(const Entry& entry, bool writer, uint64_t) override {
    if (writer && entry.writer_count == 1) changed(entry);
  }
  void shrunk(const Entry& entry) override { changed(entry); }
  void evicted(const Entry& entry) override { changed(entry); }
  void promoted(const Entry& entry, bool asked_for) override {
    // After an open with passthrough the kernel asks anew for the attributes of what it has read. In daemon
    // I/O it may have the pages in its cache and read nothing. Pools are made before that is negotiated.
    if (!asked_for || backing_store_.needs_write_access()) changed(entry);
  }

 private:
  void changed(const Entry& entry) {
    if (entry.kernel.is_to_be_told()) listener_.changed(pool_, entry.policy.ino);
  }

  DiscardListener& listener_;
  const uint16_t pool_;
  const BackingStore& backing_store_;
};

}  // namespace kvcachefs
