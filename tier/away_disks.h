// Looks from time to time whether the disks that pools are without (tier/away_disk.h) can be had again. One
// that can is not given to the pool here, beside the requests that are served: the process ends, and the next
// one, which takes over as after a death, finds it and reconciles. step() is for one thread, which may wait
// for a disk; found() for any. Failure: why a disk cannot be had is in the log when the reason changes.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <string>

#include "tier/pools.h"

namespace kvcachefs {

class AwayDisks {
 public:
  static constexpr std::chrono::milliseconds kFirstPause{250};
  static constexpr std::chrono::milliseconds kLongestPause{60'000};

  // `vain`: how many processes have ended for a disk lately. Each doubles the time until the next does.
  AwayDisks(Pools& pools, unsigned vain);

  // One look at most; true if any pool is without its disk, and the look worth repeating.
  bool step();
  // A disk can be had again.
  bool found() const { return found_.load(std::memory_order_acquire); }

 private:
  bool look(const Pool& pool);

  Pools& pools_;
  std::chrono::milliseconds pause_;
  uint64_t next_look_ns_;
  std::map<std::string, std::string> reasons_;  // by pool: why its disk could not be had the last time
  std::atomic<bool> found_{false};
};

}  // namespace kvcachefs
