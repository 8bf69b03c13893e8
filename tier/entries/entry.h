// An entry: what the daemon knows of one inode of a pool beyond what the pool's tmpfs keeps (names, modes,
// sizes, times). The entry's shard of the EntryTable guards it; Candidates guards the member `policy`. What
// several parts of the pool go by are members of Entry itself, which only Entries changes; the rest is
// grouped by the part that owns it.
//
// ARCHITECTURE.md, "Locks", has the order of all locks. A shard is held over system calls on the tmpfs, which
// never wait for a disk or for a client. It is never held over a reply or a notification to the kernel.
//
// The life of a regular file's entry:
//
//     create -> being written -- last writer closes --> fresh -- renamed, or 1 s old --> candidate
//                     ^                                                                     |
//                     +------------------------- opened for writing ------------------------+
//
// Where the bytes of a fresh entry or a candidate are (without a disk tier every entry is dirty, and to evict
// it is to discard it):
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
//   1. Only a fresh entry or a candidate can be a victim. A fresh one can only if there is no candidate,
//      because it may be a client's temporary file between close and rename.
//   2. An entry with open_count > 0 is never a victim. The count is the daemon's view and only a hint,
//      because a mapping outlives an open: the F_WRLCK lease on the file decides
//      (docs/facts.md "F_SETLEASE tells whether a file is in use").
//   3. An inode that has lost its last name lives as long as the kernel knows it. Its entry is `removed`, and
//      a descriptor in the table keeps the inode if it was open or is no regular file.
//   4. An inode that is no regular file has an entry only while the kernel knows it (lookup_count > 0). An
//      empty directory that the kernel does not know may leave (tier/pool/empty_directories.h).
//   5. Clean and cold entries have a copy(), and the catalog has that content or is about to get it. A dirty
//      entry may have one too: an older content, which the catalog keeps until it is replaced.
//   6. A cold entry's file has no blocks, and no process has it open or mapped except `direct_count` readers,
//      which the daemon serves from the disk. While the promoter copies the entry its tier does not
//      change, and it can only be removed.
//   7. Every open for writing and every truncation changes `content_epoch` first. A copy to the disk is true
//      only if the epoch has not changed since before the copy began, and if no process could write then
//      (F_RDLCK).
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/sys.h"
#include "tier/blocks.h"
#include "tier/catalog/catalog.h"
#include "tier/kept_ctime.h"
#include "tier/policies/policy.h"

namespace kvcachefs {

// Xattrs with this prefix are what the daemon writes on files for a successor. Users do not see them, and
// they do not go to the catalog.
inline constexpr std::string_view kOwnXattrs = "trusted.kvcachefs.";
// The xattr of a pinned entry's file that tells a successor of the pin; users see `user.kvcachefs.pinned`.
inline constexpr const char* kPinnedXattr = "trusted.kvcachefs.pinned";

// What the kernel knows of the inode (Inodes), and what its opens rest on (OpenFiles).
struct KernelFacts {
  uint64_t lookup_count = 0;
  uint32_t looked_up_ms = 0;
  int32_t backing = -1;  // while open: the passthrough backing id, or the descriptor in daemon I/O; -1: none
  bool sought = false;   // an open's last try looked it up, and the kernel has not forgotten it
  // A file that was adopted: the kernel may know it from the process that died, and before Linux 6.16
  // (FUSE_NOTIFY_INC_EPOCH) believes what it knows for a year. It is told as if it knew it.
  bool may_be_known = false;
  bool lookups_unknown = false;  // adopted, no regular file: lookup_count is at least 1 and otherwise unknown
  bool missed_in = false;        // a directory: the kernel may remember that a name is not in it
  uint32_t more_inode_space = 0;  // what the inode takes beside one name (tier/entries/shares.h)

  bool is_to_be_told() const { return lookup_count > 0 || may_be_known; }
};

// The memory of the entry's file (Reservations, and Entries for the sums).
struct MemoryFacts {
  // Memory is claimed for the file up to this offset; 0: none. In a closed entry a value other than 0 says
  // that claimed memory may still lie in the file's holes.
  uint64_t reserved_end = 0;
  // Memory it took at its last close or, while it is written, at the last look; a cold entry keeps this
  // number.
  uint64_t charged_bytes = 0;
  uint32_t whole_blocks = 0;       // of a pinned entry: its size; larger than 16 TiB counts as that
  bool wants_reservation = false;  // new, or truncated to 0 bytes: its next write may get a reservation
  bool gets_reservation = false;   // a reservation is being made, and no other write has begun since
  bool held = false;  // the closed entry was found in use all the same: mapped, or not let go of yet
  int8_t node = 0;

  uint64_t whole_bytes() const { return uint64_t{whole_blocks} * kBlockBytes; }
  void set_whole_bytes(uint64_t bytes) {
    whole_blocks = static_cast<uint32_t>(std::min<uint64_t>(bytes / kBlockBytes, UINT32_MAX));
  }
};

struct KeptTimes {
  timespec accessed{};
  timespec modified{};
  timespec changed{};
};

// The entry's copy on the disk, and what is under way between disk and memory (PoolDisk and the movers).
struct DiskFacts {
  enum class Spill : uint8_t { kNotAsked, kQueued, kUrgent };  // kUrgent: a waiter or the scrubber asked
  enum class Move : uint8_t { kNone, kSpilling, kPromoting };

  uint64_t node_id = 0;        // its number in the catalog; 0: the catalog does not have it
  uint32_t content_epoch = 0;  // changes whenever a process may begin to write: a copy begun before is void
  uint32_t first_version = 0;  // contents of earlier versions are older than its last truncation to 0 bytes
  uint32_t name_hash = 0;  // hash of its latest name: the admission filter knows it after the entry is gone
  uint32_t unspillable_until_ms = 0;
  bool emptied = false;            // truncated to 0 bytes after the catalog got its content
  bool synced_nameless = false;    // an O_TMPFILE that was fsync'ed: it is durable as soon as its name is
  Spill asked = Spill::kNotAsked;  // how the spiller was asked for a copy
  Move move = Move::kNone;         // what copies it now: the spiller, or the promoter
  bool awaited = false;            // promoted, and its waiters have not all been told
  bool prefetched = false;         // promoted before a client asked for it, and not opened after that
  bool guessed = false;            // the prefetcher expects its next open, and none has come yet
  uint8_t name_class = 0;          // of its first name (SizesByName); 0: unknown

  // What only an entry needs that the disk has: one without a disk pays for the pointer alone.
  struct Copies {
    std::optional<CatalogContent> latest;
    std::unique_ptr<CatalogContent> held;
    std::unique_ptr<KeptTimes> times;
    uint64_t emptied_as = 0;  // as in CopyMark
  };
  std::unique_ptr<Copies> copies;
  Copies& with_copies() {
    if (!copies) copies = std::make_unique<Copies>();
    return *copies;
  }

  // Where the disk has its content; of a dirty entry an older one. Null: it has none.
  const CatalogContent* copy() const { return copies && copies->latest ? &*copies->latest : nullptr; }
  const CatalogContent& put_copy(CatalogContent its) { return with_copies().latest.emplace(std::move(its)); }
  // The content of an entry that is served from the disk: it stays readable there when the pool drops it.
  const CatalogContent* held() const { return copies ? copies->held.get() : nullptr; }
  const CatalogContent& hold(CatalogContent its) {
    return *(with_copies().held = std::make_unique<CatalogContent>(std::move(its)));
  }
  // The times, as users see and set them, of an entry under promotion, which changes those of its file.
  KeptTimes* times() const { return copies ? copies->times.get() : nullptr; }

  // The disk is full or the entry too large for it: it is not asked for the entry for a while.
  bool is_unspillable() const {
    // The 32-bit clock wraps around after 49 days.
    return unspillable_until_ms != 0 && static_cast<int32_t>(unspillable_until_ms - now_ms()) > 0;
  }
  void set_unspillable() { unspillable_until_ms = now_ms() + kUnspillableMs; }
  bool spill_queued() const { return asked != Spill::kNotAsked; }
  bool spill_urgent() const { return asked == Spill::kUrgent; }
  bool spilling() const { return move == Move::kSpilling; }
  bool promoting() const { return move == Move::kPromoting; }

 private:
  static constexpr uint32_t kUnspillableMs = 10'000;  // the pause before another try
  static uint32_t now_ms() { return static_cast<uint32_t>(now_coarse_ms()); }
};

struct Entry {
  enum class Stage : uint8_t { kOther, kWritten, kFresh, kCandidate };
  enum class Tier : uint8_t { kDirty, kClean, kCold };

  PolicyFacts policy;
  KernelFacts kernel;
  MemoryFacts memory;
  DiskFacts disk;
  KeptCtime kept;  // for a regular file; CatalogNames keeps that of other inodes
  uint64_t stored_ms = 0;
  uint32_t generation = 0;
  uint32_t open_count = 0;
  uint32_t writer_count = 0;
  uint32_t direct_count = 0;  // how many of open_count are served from the disk
  uint32_t hits = 0;          // opens for reading after it was stored
  uint32_t version = 0;
  Stage stage = Stage::kOther;
  Tier tier = Tier::kDirty;
  bool pinned = false;
  bool removed = false;
  bool renamed = false;  // got its name while it was being written: its last close publishes it
  // A writer has called close() since the last open for writing; its release may still be on its way.
  bool flushed = false;
  bool described : 1 = false;  // it may have metadata (tier/index/metadata.h)
  bool parked : 1 = false;     // taken out of the policy until Candidates::unpark()
  bool leased : 1 = false;     // as if it was pinned, for a time (tier/pool/lifetimes.h)
  uint8_t busy_tries = 0;      // how often it was a victim and found in use since its last open

  bool is_file() const { return stage != Stage::kOther; }
  bool is_stored() const { return !removed && stage >= Stage::kFresh; }
  bool is_settled() const { return is_stored() && writer_count == 0; }
  bool is_kept() const { return pinned || leased; }
  // A pinned cold entry counts too, because it is being promoted.
  bool pins_memory() const { return is_kept() && !removed; }
  // A pin counts for all that its file can come to take: reading its holes by a mapping fills them.
  // While it is written it counts for what it was before, or is when it gets its pin: the close counts it
  // anew.
  uint64_t pin_bytes() const {
    return writer_count > 0 ? memory.whole_bytes() : std::max(memory.charged_bytes, memory.whole_bytes());
  }
  bool may_be_closed() const {
    return !removed && (flushed || (stage >= Stage::kFresh && writer_count == 0));
  }
  bool closed() const { return open_count == 0 && !removed && stage >= Stage::kFresh; }
  // Its memory can be evicted: now, or when the copy to the disk that is under way has ended.
  bool holds_evictable_memory() const { return closed() && !is_kept() && tier != Tier::kCold; }
  uint64_t evictable_bytes() const {
    return holds_evictable_memory() && !memory.held ? memory.charged_bytes : 0;
  }
  uint64_t held_bytes() const { return holds_evictable_memory() && memory.held ? memory.charged_bytes : 0; }
  bool evictable() const { return holds_evictable_memory() && !disk.spilling() && !disk.awaited; }
};

// With its place in the table it takes 208 bytes, of 256 that bench/README.md allows for all that an entry
// takes.
static_assert(sizeof(Entry) <= 184);

inline sys::Handle handle_of(const Entry& entry) {
  return {entry.policy.ino, entry.generation};
}

// The hash of an entry's latest name (Entry::disk.name_hash).
inline uint32_t name_hash_of(std::string_view name) {
  return static_cast<uint32_t>(checksum_of(std::as_bytes(std::span(name))).low);
}

inline std::string_view tier_name(Entry::Tier tier) {
  return tier == Entry::Tier::kDirty ? "dirty" : tier == Entry::Tier::kClean ? "clean" : "cold";
}

}  // namespace kvcachefs
