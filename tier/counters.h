// The counters of a pool. Any thread; each is a relaxed atomic, exact by itself but not consistent with the
// others.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/histogram.h"

namespace kvcachefs {

struct PoolCounters {
  std::atomic<uint64_t> opens_hit{0};       // opens that found the entry
  std::atomic<uint64_t> lookups_missed{0};  // lookups that reached the daemon for a name that does not exist
  std::atomic<uint64_t> creates{0};
  std::atomic<uint64_t> removes{0};    // entries that a user deleted or replaced
  std::atomic<uint64_t> evictions{0};  // memory copies dropped of entries that the disk keeps
  std::atomic<uint64_t> discards{0};   // last copies dropped
  std::atomic<uint64_t> discarded_bytes{0};
  std::atomic<uint64_t> expired{0};                // of them those whose time had come (user.kv.expires)
  std::atomic<uint64_t> group_discards{0};         // of them those that left with another of their group
  std::atomic<uint64_t> directories_reclaimed{0};  // empty directories removed to regain their inodes
  std::atomic<uint64_t> reservations{0};
  std::atomic<uint64_t> reservation_waits{0};  // reservations that had to wait for the evictor
  std::atomic<uint64_t> reservation_wait_ns{0};
  std::atomic<uint64_t> reservation_failures{0};
  // Calls that returned ENOSPC to a client for want of memory, inodes, places within a limit of names, or
  // space on the disk. With passthrough, which reports no errors to the daemon, the counter counts writers
  // that have met the end of the memory.
  std::atomic<uint64_t> no_space_errors{0};
  std::atomic<uint64_t> evict_orders{0};    // writes to .pool/evict
  std::atomic<uint64_t> gave_way_bytes{0};  // what the pool was to evict because the host was short of memory
  // Counters of the disk tier: all stay 0 without one.
  std::atomic<uint64_t> spills{0};  // entries written to disk
  std::atomic<uint64_t> spilled_bytes{0};
  std::atomic<uint64_t> spill_errors{0};     // failed writes; their entries stay dirty and are tried again
  std::atomic<uint64_t> spills_not_made{0};  // for want of room, or of an entry that the catalog cannot have
  std::atomic<uint64_t> promotes{0};         // entries read back into memory
  std::atomic<uint64_t> promoted_bytes{0};
  std::atomic<uint64_t> promote_errors{0};    // reads that failed or returned damaged bytes
  std::atomic<uint64_t> promote_waits{0};     // opens that waited for a promotion
  std::atomic<uint64_t> served_from_disk{0};  // opens served from the disk for lack of memory
  std::atomic<uint64_t> checksum_errors{0};
  std::atomic<uint64_t> damaged_discards{0};  // entries dropped because their copy on the disk was damaged
  std::atomic<uint64_t> disk_discards{0};     // entries dropped because the disk was full
  std::atomic<uint64_t> overrun_discards{0};  // dirty entries dropped because the disk was too slow
  std::atomic<uint64_t> admitted_bytes{0};
  std::atomic<uint64_t> refused_bytes{0};  // bytes that the admission filter refused
  std::atomic<uint64_t> prefetch_useful{0};
  std::atomic<uint64_t> prefetch_wasted{0};  // promoted before an open that did not come
  std::atomic<uint64_t> catalog_commits{0};
  std::atomic<uint64_t> catalog_errors{0};
  Histogram open_ns;
  Histogram create_ns;
  Histogram promote_ns;
  Histogram spill_ns;
};

inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace kvcachefs
