// What the log is told of errors of one disk: a disk that fails does so in every request, thousands a second,
// and one line a minute of each kind says as much. Any thread, with a shard held too. Never fails.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcachefs {

class DiskErrors {
 public:
  enum class Kind : uint8_t { kRead, kWrite, kDamage };

  // Whether to say this one, and then how many before it were not said.
  std::optional<uint64_t> met(Kind kind) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Met& met = met_[static_cast<size_t>(kind)];
    const uint64_t now_ms = now_coarse_ms();
    if (met.said_ms != 0 && now_ms - met.said_ms < kPauseMs) {
      ++met.unsaid;
      return std::nullopt;
    }
    met.said_ms = now_ms;
    return std::exchange(met.unsaid, 0);
  }

 private:
  static constexpr uint64_t kPauseMs = 60'000;
  struct Met {
    uint64_t said_ms = 0;  // 0: never
    uint64_t unsaid = 0;
  };
  Mutex mutex_;
  std::array<Met, 3> met_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
