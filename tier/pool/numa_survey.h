// NumaSurvey finds out where a pool's memory lies. Only a look at entries tells, 44 us each, and at most
// kFewEntries are looked at. The result of a look is remembered, and the next look comes only when it is
// asked for and more than kRest times the duration of the last one has passed: frequent calls cost two
// percent of one processor at most. Any thread; one looks while the others get the last result. Never fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "tier/pool/pool_reports.h"

namespace kvcachefs {

class NumaSurvey {
 public:
  using Usage = std::vector<NodeUsage>;
  static constexpr uint64_t kRest = 50;
  // A look takes 0.2 s at most. A caller that waits for statistics of more entries does not look.
  static constexpr uint64_t kFewEntries = 4096;

  explicit NumaSurvey(std::function<Usage()> look, std::function<uint64_t()> now = now_ns)
      : look_(std::move(look)), now_(std::move(now)) {}

  // The usage of lately; may take as long as a look.
  Usage recent() {
    Usage usage = remembered();
    return usage.empty() ? look_() : usage;  // another thread is at the first look
  }
  // The usage for statistics. Of a pool with many entries it is what the last look has found, perhaps nothing
  // yet, and a worker looks again.
  Usage known(uint64_t entries) EXCLUDES(mutex_) {
    if (entries <= kFewEntries) return recent();
    wanted_ = true;
    MutexLock lock(mutex_);
    return last_;
  }
  // The worker's thread calls this: it looks if known() has asked for it.
  void step() {
    if (wanted_.exchange(false)) (void)remembered();
  }

 private:
  Usage remembered() EXCLUDES(mutex_) {
    const uint64_t started_ns = now_();
    {
      MutexLock lock(mutex_);
      if (looking_ || started_ns < fresh_until_ns_) return last_;
      looking_ = true;
    }
    Usage found = look_();
    const uint64_t ended_ns = now_();
    MutexLock lock(mutex_);
    last_ = std::move(found);
    looking_ = false;
    fresh_until_ns_ = ended_ns + (ended_ns - started_ns) * kRest;
    return last_;
  }

  const std::function<Usage()> look_;
  const std::function<uint64_t()> now_;
  std::atomic<bool> wanted_{false};
  Mutex mutex_;
  Usage last_ GUARDED_BY(mutex_);
  bool looking_ GUARDED_BY(mutex_) = false;
  uint64_t fresh_until_ns_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
