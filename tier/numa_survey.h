// Where a pool's memory lies, which nothing tells but a look at every entry: 44 us each, seconds for a large
// pool. Looked at no more often than costs two percent of a processor (base/costly_value.h).
// Any thread. Never fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/costly_value.h"
#include "tier/pool_reports.h"

namespace kvcachefs {

class NumaSurvey {
 public:
  using Usage = std::vector<NodeUsage>;
  // As many as may be looked at while somebody waits for statistics: 0.2 s.
  static constexpr uint64_t kFewEntries = 4096;

  explicit NumaSurvey(std::function<Usage()> look) : look_(std::move(look)) {}

  // As it was lately; may take as long as the look at every entry.
  Usage recent() {
    Usage usage = last_.get(look_);
    return usage.empty() ? look_() : usage;  // another thread is at its first
  }
  // For statistics: of many entries what the last look has found, perhaps nothing yet, and a worker is to
  // look again.
  Usage known(uint64_t entries) {
    if (entries <= kFewEntries) return recent();
    wanted_ = true;
    return last_.last();
  }
  // The worker's.
  void step() {
    if (wanted_.exchange(false)) (void)last_.get(look_);
  }

 private:
  const std::function<Usage()> look_;
  std::atomic<bool> wanted_{false};
  CostlyValue<Usage> last_;
};

}  // namespace kvcachefs
