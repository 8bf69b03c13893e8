// What has changed of a pool's names and contents, on its way to the catalog, in order. append() is for any
// thread, with an entry's shard held or not, and only queues; so does when_committed(), but with no lock
// held, since after close() its waiter is told at once. step() is for one thread, which may wait for the disk
// and holds no lock while it does. One step is one flush of the disk, if
// contents are among the changes (data is durable before the catalog names it), and one transaction.
// Failure: a transaction that fails is tried again with the next step, in the same order, so nothing is lost
// while the process lives; who waits for it is told at once. After a flush of the disk that failed, or with
// more changes than memory should hold for a catalog that cannot be written, the log is frozen: the catalog
// stays as it is, what is appended is dropped, and whoever waits is told EIO, until the pool starts again.
// After close() whoever waits is told ESHUTDOWN, and what is appended is dropped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "alloc/extent.h"
#include "base/mutex.h"
#include "base/result.h"
#include "tier/block_io.h"
#include "tier/catalog.h"
#include "tier/counters.h"

namespace kvcachefs {

// Called once, with no lock held: from a worker's thread, or after close() from the call that it was given
// to.
using Waiter = std::move_only_function<void(Result<void>)>;

class CatalogLog {
 public:
  // `freed` gets the extents that nothing names any more, after the transaction that says so.
  using Freed = std::function<void(std::span<const Extent>)>;
  CatalogLog(BlockDevice& device, Catalog& catalog, PoolCounters& counters, Freed freed)
      : device_(device), catalog_(catalog), counters_(counters), freed_(std::move(freed)) {}

  // All of them in one transaction.
  void append(std::vector<CatalogChange> changes) EXCLUDES(mutex_);
  // When all that was appended before is durable, or cannot be made so now.
  void when_committed(Waiter waiter) EXCLUDES(mutex_);

  // Waits at most so long for something to do, and then a little for more of it, unless somebody waits.
  void step(std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() EXCLUDES(mutex_);
  bool idle() const EXCLUDES(mutex_);
  bool frozen() const { return frozen_.load(std::memory_order_relaxed); }
  // Tells who still waits, and whoever comes later, that nothing more will come. After the last step().
  void close() EXCLUDES(mutex_);

 private:
  struct Waiting {
    uint64_t after;  // the number of changes appended before
    Waiter waiter;
  };
  void gather() REQUIRES(mutex_);
  Result<void> write();
  size_t pending() const EXCLUDES(mutex_);
  void freeze(const char* why) EXCLUDES(mutex_);
  void answer(uint64_t committed, const Result<void>& outcome) EXCLUDES(mutex_);

  BlockDevice& device_;
  Catalog& catalog_;
  PoolCounters& counters_;
  const Freed freed_;

  mutable Mutex mutex_;
  Condition condition_;
  std::deque<CatalogChange> changes_ GUARDED_BY(mutex_);
  // Ends of units of append, as counts of changes since the start: a batch ends at one of them.
  std::deque<uint64_t> ends_ GUARDED_BY(mutex_);
  uint64_t appended_ GUARDED_BY(mutex_) = 0;
  uint64_t taken_ GUARDED_BY(mutex_) = 0;
  uint64_t committed_ GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> frozen_{false};  // changes with the mutex held
  // The worker's own: what was taken and is not committed yet.
  std::vector<CatalogChange> batch_;
  bool failing_ = false;
};

}  // namespace kvcachefs
