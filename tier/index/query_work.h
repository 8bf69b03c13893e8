// A QueryWork bounds what one query of an index costs: the system calls that the query makes, of which a name
// takes one for each directory above it, and the time. The query stops where goes_on() returns false, and its
// answer says that it may be incomplete. A query that works reports progress, so that the supervisor does not
// take it for a hanging one. One thread, apart from `ended`, which any thread sets when queries are to stop.
// Never fails.
#pragma once

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

  QueryWork(std::function<void()> still_at_it, const std::atomic<bool>& ended)
      : still_at_it_(std::move(still_at_it)), ended_(ended) {}

  // The query is about to make a system call. Returns false if it makes no more.
  bool goes_on() {
    if (is_cut_) return false;
    if (calls_++ % kCallsBetweenLooks == 0) {
      still_at_it_();
      is_cut_ = ended_ || calls_ > kMostCalls || now_ns() > until_ns_;
    }
    return !is_cut_;
  }
  bool is_cut() const { return is_cut_; }
  bool has_ended() const { return ended_; }
  uint64_t calls() const { return calls_; }

 private:
  static constexpr uint64_t kCallsBetweenLooks = 16;

  const std::function<void()> still_at_it_;
  const std::atomic<bool>& ended_;
  const uint64_t until_ns_ = now_ns() + kMostNs;
  uint64_t calls_ = 0;
  bool is_cut_ = false;
};

}  // namespace kvcachefs
