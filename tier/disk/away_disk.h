// The state of a pool whose disk is away: the pool was taken over from a process that died, and its disk
// could not be opened (tier/pool/open_disk_tier.h). The pool is served from memory
// (tier/recovery/pool_away.cc), and nothing that the disk and its catalog have is changed, until another
// process that finds the disk again takes over (tier/recovery/away_disks.h). Opens of cold entries and calls
// that ask for durability wait for that process; after the patience they fail with EIO.
//
// Any thread. Each waiter is called once, with no lock held: by step(), by close(), or by wait() itself once
// there is nothing more to wait for. It is told that the disk cannot be read (EIO) or, after close(),
// kEnding.
#pragma once

#include <chrono>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "tier/disk/residency.h"
#include "tier/entries/entry.h"
#include "tier/pool_options.h"

namespace kvcachefs {

class AwayDisk {
 public:
  // A controller's reset takes less.
  static constexpr std::chrono::seconds kPatience{5};
  // The patience for a locked disk. When a process is killed, the kernel takes its io_uring rings apart and
  // only then gives back their locks, which took more than half a second in one of 200 deaths on a busy
  // machine.
  static constexpr std::chrono::seconds kLockPatience{30};

  explicit AwayDisk(std::chrono::milliseconds patience)
      : patience_ends_ns_(now_ns() + static_cast<uint64_t>(std::chrono::nanoseconds(patience).count())) {}
  bool may_be_waited_for() const { return now_ns() < patience_ends_ns_; }
  void wait(PromoteWaiter waiter) EXCLUDES(mutex_);
  void step() EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);

 private:
  void answer(const PromoteOutcome& outcome) EXCLUDES(mutex_);

  const uint64_t patience_ends_ns_;
  Mutex mutex_;
  std::vector<PromoteWaiter> waiting_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

// True if the entry of a pool without a disk in use stays as it is, because the disk that is away has a copy
// of it or is to have one. `away` is null for a pool without such a disk.
bool keeps_for_disk(const AwayDisk* away, const Entry& entry, Durability durability);

}  // namespace kvcachefs
