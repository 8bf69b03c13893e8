// An EntryObserver hears of every event in an entry's life (tier/entries/entries.h), after the entry has
// changed, and overrides what it wants to hear. One that observes a pool from its start hears of every entry
// that there is. Called by any thread, with the entry's shard held: an observer may take locks that come
// after it (tier/entries/entry.h), waits for nothing, and never fails.
#pragma once

#include <cstdint>

#include "tier/entries/entry.h"

namespace kvcachefs {

enum class RemovalReason {
  kDeleted,    // a client removed its last name
  kReplaced,   // a client gave its last name to another
  kEvicted,    // memory was wanted, and the disk does not have it
  kDiscarded,  // space on the disk was wanted
  kExpired,    // its time had come (user.kv.expires)
  kWithGroup,  // another of its group left (user.kv.group)
  kDamaged,    // its copy on the disk is not what was stored
};

class EntryObserver {
 public:
  virtual ~EntryObserver() = default;
  virtual void created(const Entry&) {}  // it is stored too if it is not open
  // It was there before this process, or the catalog has it; and again when it is known what the disk has.
  virtual void found(const Entry&) {}
  virtual void opened(const Entry&, bool /*writer*/, uint64_t /*client*/) {}  // client 0: not known
  virtual void closed(const Entry&) {}     // by one of those that have it open
  virtual void stored(const Entry&) {}     // its last writer has closed it
  virtual void renamed(const Entry&) {}    // or it got its first name
  virtual void published(const Entry&) {}  // it has its final name, or will not get another
  virtual void described(const Entry&) {}  // its metadata has changed
  virtual void pinned(const Entry&) {}     // or it is not any more
  virtual void dirtied(const Entry&) {}    // a process may write it from now on
  virtual void shrunk(const Entry&) {}     // the daemon gave back memory of its file
  virtual void spilled(const Entry&) {}    // the disk has what the memory has
  virtual void evicted(const Entry&) {}    // its memory is free, and the disk has it
  virtual void promoted(const Entry&, bool /*asked_for*/) {}
  virtual void removed(const Entry&, RemovalReason) {}  // its last name is gone; it still has its copy
};

}  // namespace kvcachefs
