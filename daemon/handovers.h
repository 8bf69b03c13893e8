// Handovers counts how many serving processes have lately ended so that the next one takes up a disk that was
// found again (tier/recovery/away_disks.h). A disk that is found and cannot be had after all must not cost a
// takeover every second. The supervisor counts; a child sees the count from before the child began. One
// thread.
#pragma once

#include "base/clock.h"

namespace kvcachefs {

class Handovers {
 public:
  void another() {
    count_ = lately() + 1;
    last_ns_ = now_ns();
  }
  // The count goes on only if one handover follows the other within 10 minutes.
  unsigned lately() const { return now_ns() - last_ns_ > kSoonNs ? 0 : count_; }

 private:
  static constexpr uint64_t kSoonNs = 600'000'000'000;
  unsigned count_ = 0;
  uint64_t last_ns_ = 0;
};

}  // namespace kvcachefs
