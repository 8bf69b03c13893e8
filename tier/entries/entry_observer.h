// An EntryObserver hears of every event in an entry's life (tier/entries/entries.h), after the entry has
// changed. Called by any thread, with the entry's shard held: an observer may take locks that come after it
// (tier/entries/entry.h), waits for nothing, and never fails.
#pragma once

#include "tier/entries/entry_table.h"

namespace kvcachefs {

enum class RemovalReason {
  kDeleted,    // a client removed its last name
  kReplaced,   // a client gave its last name to another
  kEvicted,    // memory was wanted, and the disk does not have it
  kDiscarded,  // space on the disk was wanted
  kDamaged,    // its copy on the disk is not what was stored
};

class EntryObserver {
 public:
  virtual ~EntryObserver() = default;
  virtual void opened(const Entry&, bool /*writer*/) {}
  virtual void published(const Entry&) {}  // it has its final name, or will not get another
  virtual void evicted(const Entry&) {}    // its memory is free, and the disk has it
  virtual void promoted(const Entry&, bool /*asked_for*/) {}
  virtual void removed(EntryTable::Shard& shard, const Entry&, RemovalReason) REQUIRES(shard.mutex) {
    (void)shard;
  }
};

}  // namespace kvcachefs
