// A LogLimit limits how often a message of one kind is logged, where a user, a client or a broken disk could
// cause it at any rate: `burst` lines an interval. Lines suppressed meanwhile are counted, and the next line
// gives their count. Each kind of message has its object: a static beside the call, or a member where each
// disk or pool has its own kind:
//   static LogLimit limit;
//   limit.warning("pool {}: {} cannot be restored", pool, name);
// Thread safety: any thread. A suppressed message costs a lock and is not even formatted. Never fails.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "base/mutex.h"

namespace kvcachefs {

class LogLimit {
 public:
  static constexpr uint64_t kIntervalNs = 60'000'000'000;

  explicit LogLimit(unsigned burst = 1, uint64_t interval_ns = kIntervalNs)
      : burst_(burst), interval_ns_(interval_ns) {}
  LogLimit(const LogLimit&) = delete;
  LogLimit& operator=(const LogLimit&) = delete;

  // If a line is due, the answer is how many lines were suppressed since the last one; else nothing. The call
  // counts the caller's line.
  std::optional<uint64_t> due(uint64_t now = now_ns()) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (said_ == 0 || now - interval_began_ns_ >= interval_ns_) {
      interval_began_ns_ = now;
      said_ = 0;
    }
    if (said_ == burst_) {
      ++suppressed_;
      return std::nullopt;
    }
    ++said_;
    return std::exchange(suppressed_, 0);
  }

  template <typename... Args>
  void error(fmt::format_string<Args...> format, Args&&... args) {
    line(LogLevel::kError, format, std::forward<Args>(args)...);
  }
  template <typename... Args>
  void warning(fmt::format_string<Args...> format, Args&&... args) {
    line(LogLevel::kWarning, format, std::forward<Args>(args)...);
  }

 private:
  template <typename... Args>
  void line(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
    const auto suppressed = due();
    if (!suppressed) return;
    std::string message = fmt::format(format, std::forward<Args>(args)...);
    if (*suppressed > 0) message += fmt::format(" (and {} messages like this since the last)", *suppressed);
    log_line(level, message);
  }

  const unsigned burst_;
  const uint64_t interval_ns_;
  Mutex mutex_;
  uint64_t interval_began_ns_ GUARDED_BY(mutex_) = 0;
  unsigned said_ GUARDED_BY(mutex_) = 0;  // in this interval
  uint64_t suppressed_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
