// DiskBeforeUse lets clients read the cold entries of a pool that is being taken over while its files and its
// catalog are still gone through, which takes seconds at a million entries. An entry's mark says where its
// content is (tier/catalog/copy_mark.h), so the copy is verified and the open served from the disk, which
// changes nothing that the walk or the reconciler could have looked at. From begin() on there will be a disk;
// until it is readable(), and after withdraw(), opens wait. end() comes after the disk tier is in use, or the
// disk away. readable() and end() call waiters, so their callers hold no lock.
//
// Any thread, which may hold a lock only of those that come before in ARCHITECTURE.md "Locks". Never fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "base/mutex.h"
#include "tier/disk/disk_tier.h"

namespace kvcachefs {

class DiskBeforeUse {
 public:
  void begin() { lasts_ = true; }
  // `end_threads` ends the threads that run the tier, and closes it.
  void readable(DiskTier& tier, std::function<void()> end_threads) EXCLUDES(mutex_);
  void withdraw() EXCLUDES(mutex_);  // the tier goes
  void end() EXCLUDES(mutex_);

  bool lasts() const { return lasts_.load(std::memory_order_acquire); }
  bool is_withdrawn() const { return withdrawn_.load(std::memory_order_acquire); }
  // The waiter is told to look at the entry again, or what came of the verification. False: it is over, and
  // the waiter was not taken.
  bool verify(uint64_t ino, PromoteWaiter& waiter) EXCLUDES(mutex_);
  // As Promoter::read(). False: the disk cannot be read before it is in use, and the waiter was not taken.
  bool read(const CatalogContent& content, uint64_t offset, size_t size, Promoter::ReadWaiter& waiter)
      EXCLUDES(mutex_);
  // As those of SpillStore, of what the reconciler has found: of the rest nothing is reused yet.
  void hold(const CatalogContent& content) EXCLUDES(mutex_);
  void let_go(const CatalogContent& content) EXCLUDES(mutex_);

 private:
  void let_look_again(std::vector<PromoteWaiter> waiting);

  std::atomic<bool> lasts_{false};
  std::atomic<bool> withdrawn_{false};
  Mutex mutex_;
  DiskTier* tier_ GUARDED_BY(mutex_) = nullptr;
  std::function<void()> end_threads_ GUARDED_BY(mutex_);
  std::vector<PromoteWaiter> waiting_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
