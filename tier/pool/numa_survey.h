// NumaSurvey knows where a pool's memory lies, which only a look at entries tells, 44 us each. A read of a
// pool with more than kGlance entries shows what a worker's look at kLook of them has found. That look takes
// 0.2 s or more, so no read waits for it: where there is none of the last kFresh, the read shows an estimate
// of its own, from a glance at kGlance entries, and the worker looks. It rests for kRest times as long as its
// look took: it costs two percent of one processor at most. Any thread; step() is for one worker. Never
// fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/mutex.h"
#include "tier/pool/pool_reports.h"

namespace kvcachefs {

class NumaSurvey {
 public:
  using Usage = std::vector<NodeUsage>;
  static constexpr uint64_t kGlance = 16;
  static constexpr uint64_t kLook = 4096;
  static constexpr uint64_t kRest = 50;
  static constexpr uint64_t kFreshNs = 15'000'000'000;

  // `look` looks at so many entries, and stops as soon as ended().
  explicit NumaSurvey(std::function<Usage(uint64_t)> look, std::function<uint64_t()> now = now_ns)
      : look_(std::move(look)), now_(std::move(now)) {}

  // What a read shows of a pool with so many entries.
  Usage recent(uint64_t entries) EXCLUDES(mutex_) {
    if (entries > kGlance) {
      wanted_ = true;
      MutexLock lock(mutex_);
      if (looked_ns_ != 0 && now_() - looked_ns_ < kFreshNs) return last_;
    }
    return look_(kGlance);
  }
  // The worker looks if a read has asked for it and it has rested.
  void step() EXCLUDES(mutex_) {
    const uint64_t begun_ns = now_();
    if (begun_ns < rests_until_ns_ || !wanted_.exchange(false)) return;
    fault_point("numa look");
    Usage found = look_(kLook);
    const uint64_t ended_ns = now_();
    rests_until_ns_ = ended_ns + (ended_ns - begun_ns) * kRest;
    MutexLock lock(mutex_);
    last_ = std::move(found);
    looked_ns_ = ended_ns;
  }
  // The daemon ends, and waits for no look.
  void end() { ended_ = true; }
  bool ended() const { return ended_; }

 private:
  const std::function<Usage(uint64_t)> look_;
  const std::function<uint64_t()> now_;
  std::atomic<bool> wanted_{false};
  std::atomic<bool> ended_{false};
  uint64_t rests_until_ns_ = 0;  // the worker's
  Mutex mutex_;
  Usage last_ GUARDED_BY(mutex_);
  uint64_t looked_ns_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
