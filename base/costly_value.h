// A value that is dear to find out: found out anew only when it is asked for and more than kRest times the
// time that the last finding took has passed. So asking often costs two percent of one processor at most, and
// a cheap value is always fresh.
// Thread safety: any thread; one finds out while the others get the last value, Value{} if there is none yet.
// Failure: none.
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

  // As it was found last; Value{} if it never was.
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
