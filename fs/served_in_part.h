// ServedInPart lets a successor serve while it still walks its pools: what clients need to read entries is
// served at once, and every other request is put aside until all is found. Nothing of a pool
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
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

class ServedInPart {
 public:
  // All requests of a thousand clients' threads but writes of many bytes, of which it is sixty of the
  // largest.
  static constexpr size_t kMostBytes = size_t{64} << 20;

  explicit ServedInPart(const Pools& pools) : pools_(pools) {}

  // Threads that an earlier process has told ESTALE may be in the midst of the second try of the same call,
  // and are not told so again. `any_was_told`: there are more than those.
  void begin(std::span<const int32_t> told_stale, bool any_was_told) EXCLUDES(mutex_);
  // What is to become of a request, as the device gave it: the caller carries it out, a copy of it is put
  // aside, or the caller answers ESTALE, at which the kernel looks up the names of its path and tries again.
  enum class Way { kServed, kAside, kLookedUpAgain };
  Way way_of(std::span<const std::byte> request) EXCLUDES(mutex_) {
    return in_part_.load(std::memory_order_acquire) ? way_in_part(request) : Way::kServed;
  }
  void end() EXCLUDES(mutex_);
  // After end(): a request that was put aside, the oldest first.
  std::optional<std::vector<std::byte>> next() EXCLUDES(mutex_);

 private:
  static constexpr uint64_t kToldBefore = 0;  // no inode's nodeid

  Way way_in_part(std::span<const std::byte> request) EXCLUDES(mutex_);
  bool is_served(std::span<const std::byte> request) const;
  bool may_look_again(std::span<const std::byte> request) EXCLUDES(mutex_);
  bool put_aside(std::span<const std::byte> request) EXCLUDES(mutex_);  // false: all is found by now

  const Pools& pools_;
  std::atomic<bool> in_part_{false};
  Mutex mutex_;
  Condition found_;
  std::deque<std::vector<std::byte>> aside_ GUARDED_BY(mutex_);
  size_t aside_bytes_ GUARDED_BY(mutex_) = 0;
  // By thread: the nodeid for which it was last told to look again; kToldBefore, for one that is not known.
  std::unordered_map<uint32_t, uint64_t> looks_again_ GUARDED_BY(mutex_);
  bool any_was_told_ GUARDED_BY(mutex_) = false;
};

}  // namespace kvcachefs
