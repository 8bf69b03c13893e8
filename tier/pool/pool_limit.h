// PoolLimit: how much memory a pool may have, which is its size, or less while the host is short of memory
// (tier/pool/memory_watch.h), and what its settings say in percent of that. Any thread; a leaf. Never fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "alloc/memory_arena.h"
#include "tier/blocks.h"
#include "tier/pool_options.h"

namespace kvcachefs {

class PoolLimit {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  explicit PoolLimit(const PoolOptions& options)
      : size_bytes_(options.size_bytes),
        watermarks_(options.watermarks),
        pinned_max_percent_(options.pinned_max_percent) {}

  uint64_t size_bytes() const { return size_bytes_; }
  void set_size(uint64_t bytes) { size_bytes_ = bytes; }
  // The ceiling is the host's, and no ceiling is kNone. What a pool has above it has to leave. Writers get a
  // little more, for the time that its eviction takes: else each of them would wait for that.
  void set_ceiling(uint64_t bytes) { ceiling_bytes_ = bytes; }
  uint64_t ceiling_bytes() const { return ceiling_bytes_; }
  uint64_t above_ceiling_bytes(uint64_t used_bytes) const {
    return used_bytes - std::min<uint64_t>(used_bytes, ceiling_bytes_);
  }
  uint64_t slack_bytes() const { return slack_above(ceiling_bytes_); }
  void set_watermarks(Watermarks marks) { watermarks_ = marks; }
  Watermarks watermarks() const { return watermarks_; }
  void set_pinned_max(unsigned percent) { pinned_max_percent_ = percent; }
  uint64_t pinned_max_bytes() const { return percent_of(size_bytes_, pinned_max_percent_); }

  bool is_lowered() const { return ceiling_bytes_ < size_bytes_; }
  // Each value is read once: another thread may change it meanwhile.
  uint64_t bytes() const {
    const uint64_t size = size_bytes_, ceiling = ceiling_bytes_;
    return ceiling < size ? std::min(size, ceiling + slack_above(ceiling)) : size;
  }
  // What is free in the arena and not above the limit. A writer with passthrough can take more: the arena has
  // the pool's size.
  uint64_t free_bytes(const ArenaUsage& usage) const {
    const uint64_t limit = bytes();
    return std::min(usage.free_bytes, limit - std::min(limit, usage.used_bytes()));
  }

 private:
  static constexpr uint64_t kSlackShare = 8;
  static constexpr uint64_t kMostSlackBytes = uint64_t{128} << 20;  // as a large pool keeps free for writers
  static uint64_t slack_above(uint64_t ceiling_bytes) {
    return std::min(ceiling_bytes / kSlackShare, kMostSlackBytes);
  }

  std::atomic<uint64_t> size_bytes_;
  std::atomic<uint64_t> ceiling_bytes_{kNone};
  std::atomic<Watermarks> watermarks_;
  std::atomic<unsigned> pinned_max_percent_;
};

}  // namespace kvcachefs
