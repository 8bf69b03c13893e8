// ServedInPart lets a successor serve while it still walks its pools: what clients need to read entries that
// are in memory is served at once, and every other request is put aside until all is found. Nothing of a pool
// is changed meanwhile but what clients have open, so what the walk finds stays true. Any server thread;
// begin() comes before they start, end() when all is found. Failure: beyond kMostBytes of requests aside a
// server thread waits for end().
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "base/mutex.h"
#include "fs/stale_callers.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

class ServedInPart {
 public:
  // All requests of a thousand clients' threads but writes of many bytes, of which it is sixty of the
  // largest.
  static constexpr size_t kMostBytes = size_t{64} << 20;

  ServedInPart(const Pools& pools, StaleCallers& stale_callers)
      : pools_(pools), stale_callers_(stale_callers) {}

  void begin() { in_part_ = true; }
  // True: the caller is to carry the request out, as the device gave it. False: a copy of it is put aside.
  bool takes(std::span<const std::byte> request) EXCLUDES(mutex_) {
    return !in_part_.load(std::memory_order_acquire) || is_served(request) || !put_aside(request);
  }
  void end() EXCLUDES(mutex_);
  // After end(): a request that was put aside, the oldest first.
  std::optional<std::vector<std::byte>> next() EXCLUDES(mutex_);

 private:
  bool is_served(std::span<const std::byte> request);
  bool put_aside(std::span<const std::byte> request) EXCLUDES(mutex_);  // false: all is found by now

  const Pools& pools_;
  StaleCallers& stale_callers_;
  std::atomic<bool> in_part_{false};
  Mutex mutex_;
  Condition found_;
  std::deque<std::vector<std::byte>> aside_ GUARDED_BY(mutex_);
  size_t aside_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
