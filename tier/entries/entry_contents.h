// EntryContents: where the bytes of a pool's entries are, in memory, on the disk, in both, or under way, and
// whose. Its verbs are those of Entries (tier/entries/entries.h) by which that changes: the same threads,
// locks, sums and observers. Never fails.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "tier/entries/entry.h"

namespace kvcachefs {

class Entries;

class EntryContents {
 public:
  explicit EntryContents(Entries& entries) : entries_(entries) {}

  void charged(Entry& entry, uint64_t bytes);  // its file takes this much memory now
  // It is this user's, and takes so much beside its first name.
  void owned(Entry& entry, uid_t uid, uint32_t more_inode_space);
  // A closed entry is found to be in use all the same: mapped, or not let go of yet. That holds until its
  // next open or eviction, or until it is found free.
  void held(Entry& entry, bool held);
  void shrunk(const Entry& entry) const;    // by the daemon itself
  void dirtied(Entry& entry);               // a process may write it from now on: no copy is true any more
  void cut(Entry& entry, bool to_nothing);  // and dirtied; the epoch of its content changes with that
  // An entry that the spiller is not asked for any more may be a victim again.
  void spill_asked(Entry& entry, DiskFacts::Spill asked);
  void moves(Entry& entry, DiskFacts::Move move);
  void spilled(Entry& entry);  // the disk has what the memory has
  void evicted(Entry& entry);  // only the disk has it
  // Memory has it again. It cannot be evicted before waiters_told().
  void promoted(Entry& entry, bool asked_for);
  void waiters_told(Entry& entry);
  void found_in_memory(Entry& entry);  // by an order to promote it: it counts as used now

  // --- its copies on the disk; the caller holds and gives back their space ---
  const CatalogContent& copied(Entry& entry, CatalogContent content);  // the latest
  const CatalogContent& held_on_disk(Entry& entry, CatalogContent content);
  std::unique_ptr<CatalogContent> let_go(Entry& entry);  // of what was held
  void lost_copies(Entry& entry);

  // --- of a file that Entries::found() told of ---
  void found_version(Entry& entry, uint32_t version, uint32_t first_version);  // before found_copy()
  // The disk stores a copy of the file: the entry is clean, or cold with these bytes.
  void found_copy(Entry& entry, std::optional<uint64_t> cold_bytes);

 private:
  void unpark_if_evictable(Entry& entry);

  Entries& entries_;
};

}  // namespace kvcachefs
