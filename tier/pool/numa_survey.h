// NumaSurvey finds out where a pool's memory lies. Only a look at every entry tells: 44 us each, seconds for
// a large pool. The looks cost two percent of a processor at most (base/costly_value.h). Any thread. Never
// fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/costly_value.h"
#include "tier/pool/pool_reports.h"

namespace kvcachefs {

class NumaSurvey {
 public:
  using Usage = std::vector<NodeUsage>;
  // A caller that waits for statistics looks at this many entries at most: 0.2 s.
  static constexpr uint64_t kFewEntries = 4096;

  explicit NumaSurvey(std::function<Usage()> look) : look_(std::move(look)) {}

  // The usage of lately; may take as long as a look at every entry.
  Usage recent() {
    Usage usage = last_.get(look_);
    return usage.empty() ? look_() : usage;  // another thread is at the first look
  }
  // The usage for statistics. Of a pool with many entries it is what the last look has found, perhaps nothing
  // yet, and a worker looks again.
  Usage known(uint64_t entries) {
    if (entries <= kFewEntries) return recent();
    wanted_ = true;
    return last_.last();
  }
  // The worker's thread calls this: it looks if known() has asked for it.
  void step() {
    if (wanted_.exchange(false)) (void)last_.get(look_);
  }

 private:
  const std::function<Usage()> look_;
  std::atomic<bool> wanted_{false};
  CostlyValue<Usage> last_;
};

}  // namespace kvcachefs
