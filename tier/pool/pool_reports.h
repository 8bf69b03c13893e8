// Plain values: what a pool is ordered to evict, and what it tells of itself.
#pragma once

#include <cstdint>
#include <string>

#include "tier/entries/entry.h"

namespace kvcachefs {

struct PoolUsage {
  uint64_t size_bytes = 0;
  uint64_t limit_bytes = 0;  // what it may use now
  uint64_t used_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t evictable_bytes = 0;
  uint64_t pinned_bytes = 0;
  uint64_t pinned_max_bytes = 0;
  uint64_t entries = 0;
  uint64_t max_entries = 0;
  uint64_t open_entries = 0;
  uint64_t directories = 0;
  uint64_t max_directories = 0;
  uint64_t users = 0;
  uint64_t users_over = 0;
  uint64_t user_share_bytes = 0;  // 0: users have no shares
  uint64_t indexed_entries = 0;
  uint64_t indexed_blocks = 0;
  uint64_t index_bytes = 0;
  uint64_t index_refused = 0;
  uint64_t index_missing = 0;
};

struct EvictOrder {
  enum class Unit { kPercent, kBytes, kEntries };
  Unit unit = Unit::kBytes;
  uint64_t amount = 0;
  // False where the thread that carries the order out must not wait. Then what was closed this second may
  // leave too, and names may be gone a moment after the answer.
  bool patient = true;
};

struct EvictResult {
  uint64_t entries = 0;
  uint64_t bytes = 0;
};

// One line of .pool/entries.
struct EntryListing {
  std::string name;
  uint64_t size_bytes = 0;
  Entry::Tier tier = Entry::Tier::kDirty;
  int node = 0;
  uint64_t hits = 0;
  uint64_t age_s = 0;
  int priority = 0;
  bool pinned = false;
};

// The facts of an entry that its xattrs show.
struct EntryFacts {
  bool is_file = false;
  std::string tier;
  std::string checksum;  // hexadecimal; empty: the disk has no copy, or an older one
  int node = 0;
  uint64_t hits = 0;
  uint64_t version = 0;
  bool pinned = false;
};

struct NodeUsage {
  int node = 0;
  uint64_t bytes = 0;
  uint64_t huge_bytes = 0;
};

}  // namespace kvcachefs
