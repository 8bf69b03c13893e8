// An entry: what the daemon knows of one inode of a pool beyond what its tmpfs keeps (names, modes, sizes,
// times). Guarded by its shard of the EntryTable, but for `policy`, which Candidates guards.
//
// Lock order: EntryTable shards, in ascending index (a rename takes two) -> CatalogNames::tree() ->
// Candidates, CatalogNames' own, CatalogLog's, the movers' queues, the evictor's own.
// A shard is held over system calls on the tmpfs, which never wait for a disk or for a client; never over a
// reply to the kernel or a notification to it.
//
// The life of a regular file's entry:
//
//     create -> being written -- last writer closes --> fresh -- renamed, or 1 s old --> candidate
//                     ^                                                                     |
//                     +------------------------- opened for writing ------------------------+
//
// Where its bytes are, from then on (all of it dirty, and to evict is to discard, without a disk tier):
//
//                        spilled                    evicted
//            +-------+ -----------> +-------+ -------------------> +------+
//            | dirty |              | clean |                      | cold |
//            +-------+ <----------- +-------+ <------------------- +------+
//                |       opened for             promoted,             |
//                |       writing                checksum verified     |
//                v                                                    v
//            discarded: the disk is too slow,               discarded: the disk is full,
//            or cannot have it                              or gave wrong bytes
//
//   1. Only a fresh entry or a candidate can be a victim; a fresh one only if there is no candidate, since it
//      may be a client's temporary file between close and rename.
//   2. open_count > 0: never a victim. It is the daemon's view, and a hint: a mapping outlives it, so the
//      F_WRLCK lease on the file decides (spikes/lease.c).
//   3. An inode that has lost its last name lives as long as the kernel knows it: `removed`, held by a
//      descriptor in the table if it was open or is no regular file.
//   4. Inodes that are no regular files have an entry only while the kernel knows them (lookup_count > 0).
//   5. Clean and cold entries have their content in the shard's `copies`, and the catalog has it or is about
//      to. A dirty one may have one too: what the disk had before, which the catalog keeps until it is
//      replaced.
//   6. A cold entry's file has no blocks and nobody has it open or mapped, but for `direct_count` readers
//      that the daemon serves from the disk. While it is `promoting` its tier does not change, and nothing
//      but removals is done to it.
//   7. Who may write changes `content_epoch` first; a copy to the disk is true only if it has not changed
//      since before the copy began and nobody could write then (F_RDLCK).
#pragma once

#include <cstdint>
#include <string_view>

#include "tier/policies/policy.h"

namespace kvcachefs {

// Of what the daemon writes down on files for a successor; not for users to see, and not for the catalog.
inline constexpr std::string_view kOwnXattrs = "trusted.kvcachefs.";
// On a pinned entry's file, so that a successor knows; users see `user.kvcachefs.pinned`.
inline constexpr const char* kPinnedXattr = "trusted.kvcachefs.pinned";

struct Entry {
  enum class Stage : uint8_t { kOther, kWritten, kFresh, kCandidate };
  enum class Tier : uint8_t { kDirty, kClean, kCold };

  PolicyFacts policy;
  uint32_t generation = 0;
  uint32_t open_count = 0;
  uint32_t writer_count = 0;
  int32_t backing = -1;  // while open: the passthrough backing id, or in daemon I/O the descriptor
  uint64_t lookup_count = 0;
  uint64_t reserved_end = 0;   // the daemon has claimed memory up to this offset; 0: nothing
  uint64_t charged_bytes = 0;  // of memory, as of its last close; a cold one's as of before
  uint64_t stored_ms = 0;
  uint32_t looked_up_ms = 0;
  uint32_t hits = 0;  // opens for reading since it was stored
  uint32_t version = 0;
  uint32_t first_version = 0;  // contents of earlier ones are of before it was last cut to nothing
  // Of the disk tier. `content_epoch` changes whenever somebody may write: a copy that was begun before is
  // void.
  uint64_t node_id = 0;  // the catalog's number for it; 0: the catalog does not have it
  // Evicting and promoting change the ctime of its file in the tmpfs: while that is `own_ctime_ns`, users see
  // the one of before.
  uint64_t own_ctime_ns = 0;
  uint64_t shown_ctime_ns = 0;
  uint32_t content_epoch = 0;
  uint32_t name_hash = 0;  // of the last name it got: survives in admission's memory what the entry does not
  uint32_t direct_count = 0;  // of open_count: those that are served from the disk
  uint32_t unspillable_until_ms = 0;
  Tier tier = Tier::kDirty;
  bool emptied = false;  // cut to nothing since the catalog got its content
  bool spill_queued = false;
  bool spill_urgent = false;     // and somebody waits for it
  bool synced_nameless = false;  // an O_TMPFILE that is durable as soon as its name is
  bool spilling = false;         // its pages are mapped by the spiller
  bool promoting = false;
  bool prefetched = false;  // promoted before anybody asked for it, and not opened since
  Stage stage = Stage::kOther;
  bool pinned = false;
  bool renamed = false;  // published while its last close was still on its way
  bool flushed =
      false;  // a writer has called close() since the last open for writing, which may be on its way
  bool removed = false;
  bool lookups_unknown = false;  // adopted, and no regular file: lookup_count is at least 1, and says no more
  int8_t node = 0;
  uint8_t busy_tries = 0;  // how often it was found in use as a victim since its last open
  bool parked = false;     // out of the policy's hands until it is closed or let go of

  bool is_file() const { return stage != Stage::kOther; }
  bool is_stored() const { return !removed && stage >= Stage::kFresh; }
  // A cold one, too: it is on its way back.
  bool pins_memory() const { return pinned && !removed; }
  bool may_be_closed() const {
    return !removed && (flushed || (stage >= Stage::kFresh && writer_count == 0));
  }
  bool closed() const { return open_count == 0 && !removed && stage >= Stage::kFresh; }
  // Its memory can be had, if it is on its way to the disk this moment then after that.
  bool holds_evictable_memory() const { return closed() && !pinned && tier != Tier::kCold; }
  bool evictable() const { return holds_evictable_memory() && !spilling; }
};

inline std::string_view tier_name(Entry::Tier tier) {
  return tier == Entry::Tier::kDirty ? "dirty" : tier == Entry::Tier::kClean ? "clean" : "cold";
}

}  // namespace kvcachefs
