#include "daemon/takeover_watch.h"

#include <algorithm>

#include "base/clock.h"
#include "base/log.h"
#include "base/progress.h"
#include "daemon/child.h"

namespace kvcachefs {

constexpr uint64_t kLongestBetweenLooksNs = 200'000'000;

void TakeoverWatch::begins(pid_t process) {
  *this = {};
  process_ = process;
  steps_ = steps_of_all_processes().value_or(0);
  looked_ns_ = now_ns();
}

bool TakeoverWatch::hangs(std::chrono::nanoseconds bound) {
  const auto bound_ns = static_cast<uint64_t>(bound.count());
  const uint64_t since_look_ns = std::min(now_ns() - looked_ns_, kLongestBetweenLooksNs);
  looked_ns_ = now_ns();
  const auto steps = steps_of_all_processes();
  if (bound_ns == 0 || !steps) return false;
  if (*steps != steps_) {
    steps_ = *steps;
    still_ns_ = waiting_ns_ = 0;
  } else if (waits_in_kernel(process_)) {
    still_ns_ = 0;
    waiting_ns_ += since_look_ns;
    if (waiting_ns_ >= bound_ns && !has_said_) {
      has_said_ = true;
      log_error(
          "the process that takes over has waited in the kernel for {} s, for a disk or for memory: no "
          "signal "
          "can end that, and requests wait with it",
          waiting_ns_ / 1'000'000'000);
    }
  } else {
    waiting_ns_ = 0;
    still_ns_ += since_look_ns;
  }
  return still_ns_ >= bound_ns;
}

}  // namespace kvcachefs
