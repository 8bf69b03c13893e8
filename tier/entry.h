// An entry: what the daemon knows of one inode of a pool beyond what its tmpfs keeps (names, modes, sizes,
// times). Guarded by its shard of the EntryTable, but for `policy`, which Candidates guards.
//
// Lock order: EntryTable shards, in ascending index (a rename takes two) -> Candidates -> the evictor's own.
// A shard is held over system calls on the tmpfs, which never wait for a disk or for a client; never over a
// reply to the kernel or a notification to it.
//
// The life of a regular file's entry:
//
//     create ──> being written ──last writer closes──> fresh ──renamed, or 1 s old──> candidate ──> discarded
//                     ^                                                                   │
//                     └───────────────────────── opened for writing ─────────────────────┘
//
//   1. Only a fresh entry or a candidate can be a victim; a fresh one only if there is no candidate, since it
//   may be a
//      client's temporary file between close and rename.
//   2. open_count > 0: never a victim. It is the daemon's view, and a hint: a mapping outlives it, so the
//   F_WRLCK lease
//      on the file decides (spikes/lease.c).
//   3. An inode that has lost its last name lives as long as the kernel knows it: `removed`, held by a
//   descriptor in
//      the table if it was open or is no regular file.
//   4. Inodes that are no regular files have an entry only while the kernel knows them (lookup_count > 0).
#pragma once

#include <cstdint>

#include "tier/policies/policy.h"

namespace kvcachefs {

struct Entry {
  enum class Stage : uint8_t { kOther, kWritten, kFresh, kCandidate };

  PolicyFacts policy;
  uint32_t generation = 0;
  uint32_t open_count = 0;
  uint32_t writer_count = 0;
  int32_t backing = -1;  // while open: the passthrough backing id, or in daemon I/O the descriptor
  uint64_t lookup_count = 0;
  uint64_t reserved_end = 0;   // the daemon has claimed memory up to this offset; 0: nothing
  uint64_t charged_bytes = 0;  // what evicting it would free, as of its last close
  uint64_t stored_ms = 0;
  uint32_t looked_up_ms = 0;
  uint32_t hits = 0;
  uint32_t version = 0;
  Stage stage = Stage::kOther;
  bool pinned = false;
  bool renamed = false;  // published while its last close was still on its way
  bool removed = false;
  int8_t node = 0;
  bool parked = false;  // out of the policy's hands until it is closed or let go of

  bool is_file() const { return stage != Stage::kOther; }
  bool evictable() const { return open_count == 0 && !pinned && !removed && stage >= Stage::kFresh; }
};

}  // namespace kvcachefs
