// A CostlyValue is costly to find and is therefore remembered. It is found anew only when it is asked for and
// more than kRest times the duration of the last search has passed. So frequent calls cost two percent of one
// processor at most, and a cheap value is always fresh. Thread safety: any thread; one thread searches while
// the others get the last value, or Value{} if there is none yet. Failure: none.
#pragma once

#include <cstdint>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcachefs {

template <class Value>
class CostlyValue {
 public:
  static constexpr uint64_t kRest = 50;

  template <class Find, class Now = uint64_t (*)()>
  Value get(Find&& find, Now&& now = now_ns) EXCLUDES(mutex_) {
    const uint64_t started_ns = now();
    {
      MutexLock lock(mutex_);
      if (finding_ || (known_ && started_ns < fresh_until_ns_)) return value_;
      finding_ = true;
    }
    Value found = find();
    const uint64_t ended_ns = now();
    MutexLock lock(mutex_);
    value_ = std::move(found);
    known_ = true;
    finding_ = false;
    fresh_until_ns_ = ended_ns + (ended_ns - started_ns) * kRest;
    return value_;
  }

  // The value found last; Value{} if none was found yet.
  Value last() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return value_;
  }

 private:
  Mutex mutex_;
  Value value_ GUARDED_BY(mutex_){};
  bool known_ GUARDED_BY(mutex_) = false;
  bool finding_ GUARDED_BY(mutex_) = false;
  uint64_t fresh_until_ns_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
