// A QueryWork bounds what one query of an index costs: the system calls that the query makes, of which a name
// takes one for each directory above it, the time, and the memory. The query stops where goes_on() returns
// false, and its answer says that it may be incomplete. A query that works reports progress, so that the
// supervisor does not take it for a hanging one. One thread, apart from `ended`, which any thread sets when
// queries are to stop. Never fails.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "base/clock.h"

namespace kvcachefs {

class QueryWork {
 public:
  // Twice the calls for 65,536 names that lie two directories deep; those take one or two seconds.
  static constexpr uint64_t kMostCalls = uint64_t{1} << 19;
  static constexpr uint64_t kMostNs = 10'000'000'000;

  // Charges this many bytes to the query's user. Returns false if the user has no room for them. nullptr: no
  // user is charged.
  using Charge = std::function<bool(uint64_t bytes)>;

  QueryWork(std::function<void()> still_at_it, const std::atomic<bool>& ended, Charge charge = nullptr)
      : still_at_it_(std::move(still_at_it)), ended_(ended), charge_(std::move(charge)) {}

  // The query is about to make a system call. Returns false if it makes no more.
  bool goes_on() {
    if (is_cut_) return false;
    if (calls_++ % kCallsBetweenLooks == 0) {
      still_at_it_();
      is_cut_ = ended_ || calls_ > kMostCalls || now_ns() > until_ns_;
    }
    return !is_cut_;
  }
  // The query is about to take this much memory until its answer is made. Returns false, from then on, if the
  // user has no room for it.
  bool takes(uint64_t bytes) {
    if (bytes > charged_bytes_ && !lacks_memory_) {
      const uint64_t more = std::max(bytes, kChargedAtOnce);
      lacks_memory_ = charge_ && !charge_(more);
      charged_bytes_ += more;
    }
    charged_bytes_ -= std::min(charged_bytes_, bytes);
    is_cut_ = is_cut_ || lacks_memory_;
    return !lacks_memory_;
  }
  // The search has passed over some entries: the answer may be incomplete, though the query goes on.
  void leaves_out() { leaves_out_ = true; }
  bool may_lack() const { return is_cut_ || leaves_out_; }
  bool is_cut() const { return is_cut_; }
  bool has_ended() const { return ended_; }
  uint64_t calls() const { return calls_; }

 private:
  static constexpr uint64_t kCallsBetweenLooks = 16;
  static constexpr uint64_t kChargedAtOnce = 64 << 10;

  const std::function<void()> still_at_it_;
  const std::atomic<bool>& ended_;
  const uint64_t until_ns_ = now_ns() + kMostNs;
  const Charge charge_;
  uint64_t calls_ = 0;
  uint64_t charged_bytes_ = 0;  // and not taken yet
  bool is_cut_ = false, lacks_memory_ = false, leaves_out_ = false;
};

}  // namespace kvcachefs
