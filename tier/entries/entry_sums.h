// EntrySums: how many entries a pool has and what they take, by what may happen to it. Each sum is exact by
// itself. Any thread reads them; the verbs of Entries and EntryContents alone change them. Never fails.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "tier/entries/entry.h"

namespace kvcachefs {

class EntrySums {
 public:
  uint64_t files() const { return files_; }
  uint64_t open_files() const { return open_files_; }
  // Memory that eviction could free. What is known to be held may be free by now: an order for all tries
  // that, too.
  uint64_t evictable_bytes(bool even_held = false) const {
    return evictable_bytes_ + (even_held ? held_bytes_.load() : 0);
  }
  uint64_t pinned_bytes() const { return pinned_bytes_; }
  uint64_t stored_entries(Entry::Tier tier) const { return tier_entries_[static_cast<size_t>(tier)]; }
  uint64_t stored_bytes(Entry::Tier tier) const { return tier_bytes_[static_cast<size_t>(tier)]; }

 private:
  friend class Entries;

  std::atomic<uint64_t> files_{0};
  std::atomic<uint64_t> open_files_{0};
  std::atomic<uint64_t> evictable_bytes_{0};
  std::atomic<uint64_t> held_bytes_{0};
  std::atomic<uint64_t> pinned_bytes_{0};
  std::array<std::atomic<uint64_t>, 3> tier_entries_{};
  std::array<std::atomic<uint64_t>, 3> tier_bytes_{};
};

}  // namespace kvcachefs
