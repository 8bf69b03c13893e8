// Handovers counts how many serving processes in a row have ended in vain so that the next one takes up a
// disk that was found again (tier/recovery/away_disks.h). A disk that is found and cannot be had after all
// must not cost a takeover every second. One that was had counts no more: clients wait for it with the
// patience of tier/disk/away_disk.h, however often it was away before. The supervisor counts; a child sees
// the count from before the child began. One thread.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace kvcachefs {

class Handovers {
 public:
  // A serving process has ended. `without_disk`: the pools that the last one to take over has written down as
  // without their disks. `for_a_disk`: it ended because it had found one.
  void ended(std::vector<std::string> without_disk, bool for_a_disk) {
    const auto was_had = [&](const std::string& pool) {
      return std::ranges::find(without_disk, pool) == without_disk.end();
    };
    if (std::ranges::any_of(without_disk_, was_had)) count_ = 0;
    if (!for_a_disk) return;
    count_ = lately() + 1;
    last_ns_ = now_ns();
    without_disk_ = std::move(without_disk);
  }
  // The count goes on only if one handover follows the other within 10 minutes.
  unsigned lately() const { return now_ns() - last_ns_ > kSoonNs ? 0 : count_; }

 private:
  static constexpr uint64_t kSoonNs = 600'000'000'000;
  unsigned count_ = 0;
  uint64_t last_ns_ = 0;
  std::vector<std::string> without_disk_;  // at the last handover
};

}  // namespace kvcachefs
