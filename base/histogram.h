// A latency histogram with power-of-two buckets: bucket i counts values above 2^(i-1) and up to 2^i ns.
// Thread safety: any thread; recording is two relaxed atomic additions, a snapshot is not one instant.
// Failure: none; values beyond the last bound are counted in the last bucket.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace kvcachefs {

struct HistogramSnapshot {
  // 2^39 ns is nine minutes: beyond any bounded wait of the daemon.
  static constexpr size_t kBucketCount = 40;

  std::array<uint64_t, kBucketCount> buckets{};
  uint64_t count = 0;
  uint64_t sum_ns = 0;

  // The largest value that bucket `index` counts.
  static constexpr uint64_t upper_bound_ns(size_t index) { return uint64_t{1} << index; }
};

class Histogram {
 public:
  void record(uint64_t ns) {
    buckets_[bucket_of(ns)].fetch_add(1, std::memory_order_relaxed);
    sum_ns_.fetch_add(ns, std::memory_order_relaxed);
  }

  HistogramSnapshot snapshot() const {
    HistogramSnapshot result;
    for (size_t index = 0; index < result.buckets.size(); ++index) {
      result.buckets[index] = buckets_[index].load(std::memory_order_relaxed);
      result.count += result.buckets[index];
    }
    result.sum_ns = sum_ns_.load(std::memory_order_relaxed);
    return result;
  }

 private:
  static size_t bucket_of(uint64_t ns) {
    const size_t index = ns <= 1 ? 0 : static_cast<size_t>(std::bit_width(ns - 1));
    return std::min(index, HistogramSnapshot::kBucketCount - 1);
  }

  // Relaxed order suffices, because the counters order no other memory.
  std::array<std::atomic<uint64_t>, HistogramSnapshot::kBucketCount> buckets_{};
  std::atomic<uint64_t> sum_ns_{0};
};

}  // namespace kvcachefs
