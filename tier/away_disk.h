// That a pool which was taken over from a process that died is without its disk: it could not be had
// (tier/open_disk_tier.h). The pool is served with what is in memory (tier/pool_away.cc), and nothing is
// changed of what the disk and its catalog have, until another process takes over that finds the disk again
// (tier/away_disks.h). Opens of cold entries, and whatever is to be durable, wait for that, at first; after
// the patience they fail with EIO. Any thread. A waiter is called once, with no lock held: by step(), or by
// wait() itself when nothing is to be waited for any more; with EIO, or with ESHUTDOWN after close().
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "tier/catalog_log.h"
#include "tier/entry.h"
#include "tier/pool_options.h"

namespace kvcachefs {

class AwayDisk {
 public:
  // A controller is reset in less.
  static constexpr std::chrono::seconds kPatience{5};
  // Of a disk that is locked: the kernel takes the ring of a process that was killed apart, and only then
  // gives back its locks, which took more than half a second in one of 200 deaths on a busy machine.
  static constexpr std::chrono::seconds kLockPatience{30};

  explicit AwayDisk(std::chrono::seconds patience)
      : patience_ends_ns_(now_ns() + static_cast<uint64_t>(std::chrono::nanoseconds(patience).count())) {}
  bool may_be_waited_for() const { return now_ns() < patience_ends_ns_; }
  void wait(Waiter waiter) EXCLUDES(mutex_);
  void step() EXCLUDES(mutex_);
  void close() EXCLUDES(mutex_);

 private:
  void answer(int code) EXCLUDES(mutex_);

  const uint64_t patience_ends_ns_;
  Mutex mutex_;
  std::vector<Waiter> waiting_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

// Of a pool without a disk in use, where `away` is none unless it is for that.
// Whether an entry stays as it is for the sake of what the disk has of it, or is to have.
bool keeps_for_disk(const AwayDisk* away, const Entry& entry, Durability durability);
// What an open of a cold entry is told; without `away` its catalog is still being read.
int code_of_cold_open(const AwayDisk* away);
// What is to be durable: at once where there is no disk tier, else it waits for the disk.
void durable_without_disk(AwayDisk* away, Waiter waiter);
// Whoever asks for something of the disk itself.
std::unexpected<Error> refuse_without_disk(const AwayDisk* away, const std::string& pool);

}  // namespace kvcachefs
