// How many serving processes have lately ended so that the next one finds a disk again (tier/away_disks.h):
// one that is found and cannot be had after all must not cost a takeover every second. The supervisor counts;
// a child has what was counted before it began. One thread.
#pragma once

#include "base/clock.h"

namespace kvcachefs {

class Handovers {
 public:
  void another() {
    count_ = lately() + 1;
    last_ns_ = now_ns();
  }
  // As long as one follows the other within minutes.
  unsigned lately() const { return now_ns() - last_ns_ > kSoonNs ? 0 : count_; }

 private:
  static constexpr uint64_t kSoonNs = 600'000'000'000;
  unsigned count_ = 0;
  uint64_t last_ns_ = 0;
};

}  // namespace kvcachefs
