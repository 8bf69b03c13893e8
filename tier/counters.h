// What a pool counts. Any thread; relaxed atomics, each one true by itself but not with the others.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/histogram.h"

namespace kvcachefs {

struct PoolCounters {
  std::atomic<uint64_t> opens_hit{0};       // opens of an entry that is there
  std::atomic<uint64_t> lookups_missed{0};  // lookups that reached the daemon for a name that is not there
  std::atomic<uint64_t> creates{0};
  std::atomic<uint64_t> removes{0};    // entries a user deleted or replaced
  std::atomic<uint64_t> evictions{0};  // memory copies dropped of entries kept on disk
  std::atomic<uint64_t> discards{0};   // last copies dropped
  std::atomic<uint64_t> discarded_bytes{0};
  std::atomic<uint64_t> reservations{0};
  std::atomic<uint64_t> reservation_waits{0};  // those that had to wait for the evictor
  std::atomic<uint64_t> reservation_wait_ns{0};
  std::atomic<uint64_t> reservation_failures{0};
  std::atomic<uint64_t> evict_orders{0};  // writes to .pool/evict
  // The disk tier. All stay 0 without one.
  std::atomic<uint64_t> spills{0};  // entries written to disk
  std::atomic<uint64_t> spilled_bytes{0};
  std::atomic<uint64_t> spill_errors{0};  // writes that failed; their entries stay dirty, and are tried again
  std::atomic<uint64_t> promotes{0};      // entries read back into memory
  std::atomic<uint64_t> promoted_bytes{0};
  std::atomic<uint64_t> promote_errors{0};    // reads that failed, or gave bytes that are damaged
  std::atomic<uint64_t> promote_waits{0};     // opens that waited for one
  std::atomic<uint64_t> served_from_disk{0};  // opens without memory for the entry
  std::atomic<uint64_t> checksum_errors{0};
  std::atomic<uint64_t> disk_discards{0};     // entries dropped since the disk was full
  std::atomic<uint64_t> overrun_discards{0};  // dirty ones, since the disk was slower than the writers
  std::atomic<uint64_t> admitted_bytes{0};
  std::atomic<uint64_t> refused_bytes{0};  // by admission
  std::atomic<uint64_t> prefetch_useful{0};
  std::atomic<uint64_t> prefetch_wasted{0};  // promoted ahead of an open that did not come
  std::atomic<uint64_t> catalog_commits{0};
  std::atomic<uint64_t> catalog_errors{0};
  Histogram open_ns;
  Histogram create_ns;
  Histogram promote_ns;
};

inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace kvcachefs
