// A PollTime says how long a server thread that has just served looks for the next request before it sleeps.
// The time is at most `most_ns`. It halves after each request that came later than `most_ns`, and doubles
// after each that came in time. So a mount that is used now and then costs a sixteenth of `most_ns` for each
// request, and a busy mount is back at all of it within a few requests. Only the time at which a request came
// counts, not whether a thread saw it, because short looks would otherwise never show that longer ones are
// worth it. Thread safety: any thread; if several threads look at the same time, the start of the last one
// counts. Failure: none.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace kvcachefs {

class PollTime {
 public:
  static constexpr uint64_t kLeastShare = 16;

  explicit PollTime(uint64_t most_ns) : most_ns_(most_ns), present_ns_(most_ns) {}

  bool is_on() const { return most_ns_ > 0; }
  uint64_t present_ns() const { return present_ns_.load(std::memory_order_relaxed); }

  void started(uint64_t at_ns) { started_ns_.store(at_ns, std::memory_order_relaxed); }
  // Only the first request after a start changes the time.
  void arrived(uint64_t at_ns) {
    const uint64_t started_ns = started_ns_.exchange(0, std::memory_order_relaxed);
    if (started_ns == 0) return;
    const bool in_time = at_ns - std::min(at_ns, started_ns) <= most_ns_;
    const uint64_t wanted_ns = in_time ? present_ns() * 2 : present_ns() / 2;
    const uint64_t least_ns = std::max<uint64_t>(most_ns_ / kLeastShare, 1);
    present_ns_.store(std::clamp(wanted_ns, least_ns, std::max(most_ns_, least_ns)),
                      std::memory_order_relaxed);
  }

 private:
  const uint64_t most_ns_;
  std::atomic<uint64_t> present_ns_;
  std::atomic<uint64_t> started_ns_{0};  // 0: a request has come since the start
};

}  // namespace kvcachefs
