// AwayDisks looks from time to time whether the disks that pools are without (tier/disk/away_disk.h) can be
// had again. Such a disk is not given to the pool here, beside the requests that are served. Instead the
// process ends, and the next one, which takes over as after a death, finds the disk and reconciles. step() is
// for one thread, which may wait for a disk; found() is for any thread. Failure: the log says why a disk
// cannot be had, when the reason changes.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <string>

#include "tier/pool/pools.h"

namespace kvcachefs {

class AwayDisks {
 public:
  static constexpr std::chrono::milliseconds kFirstPause{250};
  static constexpr std::chrono::milliseconds kLongestPause{60'000};

  // `vain`: how many processes have ended for a disk lately. Each doubles the pause between looks.
  AwayDisks(Pools& pools, unsigned vain);

  // Looks at each such pool's disk if it is time to; true if any pool is without its disk.
  bool step();
  // A disk can be had again.
  bool found() const { return found_.load(std::memory_order_acquire); }

 private:
  bool look(Pool& pool);

  Pools& pools_;
  std::chrono::milliseconds pause_;
  uint64_t next_look_ns_;
  const uint64_t try_all_ns_;  // from then on a catalog that has ended a process is tried again
  std::map<std::string, std::string> reasons_;  // by pool: why its disk could not be had at the last look
  std::atomic<bool> found_{false};
};

}  // namespace kvcachefs
