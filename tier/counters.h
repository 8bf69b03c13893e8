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
  Histogram open_ns;
  Histogram create_ns;
};

inline void count(std::atomic<uint64_t>& counter, uint64_t by = 1) {
  counter.fetch_add(by, std::memory_order_relaxed);
}

}  // namespace kvcachefs
