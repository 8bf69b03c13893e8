// How much of a pool's memory stays free for its writers. Pure functions, any thread. Never fails.
#pragma once

#include <algorithm>
#include <cstdint>

#include "tier/pool/pool_limit.h"

namespace kvcachefs {

// In a pool smaller than this a writer gets passthrough only if half of the pool can be promised to it.
inline constexpr uint64_t kSmallPoolBytes = uint64_t{1} << 30;
// The most that an entry's size is learned to be: the size for which fallocate takes half a millisecond
// (54 us for 32 MiB, docs/facts.md "tmpfs with huge=within_size").
inline constexpr uint64_t kLearnedMaxBytes = uint64_t{256} << 20;

struct WritersNeed {
  uint64_t expected_bytes;  // of an entry
  uint64_t growth_bytes;    // what writers that outgrew their reservation may add (Capacity::expect_growth())
  bool passes;              // some write past the daemon
};

// Memory that not even reservations may hold, because writers that outgrow their reservations cannot wait.
inline uint64_t outgrowth_bytes(uint64_t size_bytes, const WritersNeed& writing) {
  constexpr uint64_t kGrowthShare = 4;  // while a writer is known to need more than was reserved
  // A writer with passthrough that needs more than it was promised takes what is free until the evictor sees
  // it. On a busy machine of two processors the evictor was 24 ms late; at 5 GB/s this lasts for that time.
  constexpr uint64_t kUnpromisedBytes = uint64_t{128} << 20;
  constexpr uint64_t kUnpromisedShare = 8;
  const bool outgrows = writing.passes && size_bytes >= kSmallPoolBytes;
  return std::max(std::min(size_bytes / kGrowthShare, writing.growth_bytes),
                  outgrows ? std::min(size_bytes / kUnpromisedShare, kUnpromisedBytes) : 0);
}

// Memory that entries leave free. Reservations may hold the part for a few entries.
inline uint64_t headroom_bytes(uint64_t size_bytes, const WritersNeed& writing) {
  // At most this share of a small pool stays empty for the sake of writers.
  constexpr uint64_t kShare = 16;
  constexpr uint64_t kEntries = 4;
  const uint64_t reservable_bytes = std::min(size_bytes / kShare, kEntries * writing.expected_bytes);
  const WritersNeed growth = {0, writing.growth_bytes, false};
  return std::max(reservable_bytes + outgrowth_bytes(size_bytes, growth),
                  outgrowth_bytes(size_bytes, writing));
}

// The part of a pool's memory that entries may take before eviction begins, whatever size is learned of them.
// statvfs(2) reports it. Entries larger than an eighth of the pool may leave sooner.
inline uint64_t holdable_bytes(const PoolLimit& limit, bool passes) {
  const uint64_t size_bytes = limit.size_bytes();
  return std::min(size_bytes / 100 * limit.watermarks().high_percent,
                  size_bytes - headroom_bytes(size_bytes, {kLearnedMaxBytes, 0, passes}));
}

}  // namespace kvcachefs
