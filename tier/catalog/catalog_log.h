// The changes of a pool's names and contents on their way to the catalog, in order.
//
// Threads: any thread may call append(), with an entry's shard held or not, and when_committed(), with no
// lock held; they only queue, but after close() a waiter is told at once. step() belongs to one thread, which
// may wait for the disk and holds no lock while it does. One step is one transaction, after one flush of the
// disk if contents are among the changes: data is durable before the catalog names it.
//
// Failure: a failed transaction is tried again with the next step, in the same order, so nothing is lost
// while the process lives; its waiters are told at once. After a failed flush of the disk, or with more
// changes than memory should hold for a catalog that cannot be written, the log is frozen: the catalog stays
// as it is, appended changes are dropped, and waiters are told EIO, until the pool starts again. After
// close() waiters are told ESHUTDOWN and appended changes are dropped.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "alloc/extent.h"
#include "base/mutex.h"
#include "base/result.h"
#include "tier/block_io.h"
#include "tier/catalog/catalog.h"
#include "tier/counters.h"

namespace kvcachefs {

// A Waiter is called once, with no lock held: from a worker's thread, or after close() from the call that it
// was given to.
using Waiter = std::move_only_function<void(Result<void>)>;

class CatalogLog {
 public:
  // `freed` gets the extents that nothing names any more, after the transaction that dropped the last name.
  using Freed = std::function<void(std::span<const Extent>)>;
  CatalogLog(BlockDevice& device, Catalog& catalog, PoolCounters& counters, Freed freed)
      : device_(device), catalog_(catalog), counters_(counters), freed_(std::move(freed)) {}

  // append() queues the changes; all of them come in one transaction. A PutNode by itself takes the place of
  // one of the same node that still waits: it is committed no later than that, and a node that is changed
  // again and again waits once.
  void append(std::vector<CatalogChange> changes) EXCLUDES(mutex_);
  // when_committed() calls the waiter when the changes appended before are durable, or when they cannot be
  // made durable now.
  void when_committed(Waiter waiter) EXCLUDES(mutex_) { wait({.waiter = std::move(waiter)}); }
  // The same for a caller that must not wait for a hanging disk: the waiter gets ETIMEDOUT when a transaction
  // has taken kHangMs, from tell_of_hang(), which is called from time to time.
  void when_it_takes_more(Waiter waiter) EXCLUDES(mutex_) {
    wait({.waiter = std::move(waiter), .gives_up = true});
  }
  static constexpr uint64_t kHangMs = 30'000;
  void tell_of_hang(uint64_t now_ms) EXCLUDES(mutex_);

  // step() waits at most `at_most` for a change or a waiter, and then at most kGatheringTime for more
  // changes, unless there is a waiter.
  void step(std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() EXCLUDES(mutex_);
  bool idle() const EXCLUDES(mutex_);
  // is_full() is true if more waits to be written than memory should hold, or several times as much: a caller
  // that can wait does so before it changes more.
  bool is_full(unsigned times = 1) const {
    return pending_bytes_.load(std::memory_order_relaxed) > times * kFullBytes;
  }
  bool frozen() const { return frozen_.load(std::memory_order_relaxed); }
  // has_lost() is true if a flush failed before a content of the node was committed: the disk may not have
  // it.
  bool has_lost(uint64_t node_id) const EXCLUDES(mutex_);
  // stop_for_good() freezes the log, for a catalog of which not all could be read. It is called before the
  // first step().
  void stop_for_good(const char* why) EXCLUDES(mutex_) { freeze(why, false); }
  // close() tells remaining waiters, and later callers, ESHUTDOWN. It is called after the last step().
  void close() EXCLUDES(mutex_);

 private:
  static constexpr uint64_t kFullBytes = uint64_t{64} << 20;
  struct Waiting {
    uint64_t after = 0;  // the number of changes appended before it
    Waiter waiter;
    bool gives_up = false;
  };
  void wait(Waiting waiting) EXCLUDES(mutex_);
  void gather() REQUIRES(mutex_);
  Result<void> write();
  void freeze(const char* why, bool flush_failed) EXCLUDES(mutex_);
  void note_lost(const auto& changes) REQUIRES(mutex_);
  bool replaces_waiting(std::vector<CatalogChange>& changes) REQUIRES(mutex_);
  void answer(uint64_t committed, const Result<void>& outcome) EXCLUDES(mutex_);

  BlockDevice& device_;
  Catalog& catalog_;
  PoolCounters& counters_;
  const Freed freed_;

  mutable Mutex mutex_;
  Condition condition_;
  std::deque<CatalogChange> changes_ GUARDED_BY(mutex_);
  // The ends of appended groups, as counts of changes since the start: a batch ends at one of them.
  std::deque<uint64_t> ends_ GUARDED_BY(mutex_);
  // Where each node was put last, as a count of changes since the start, of those that wait.
  std::unordered_map<uint64_t, uint64_t> put_at_ GUARDED_BY(mutex_);
  uint64_t appended_ GUARDED_BY(mutex_) = 0;
  uint64_t taken_ GUARDED_BY(mutex_) = 0;
  uint64_t committed_ GUARDED_BY(mutex_) = 0;
  std::deque<Waiting> waiting_ GUARDED_BY(mutex_);
  // The nodes with a content that was not committed before a flush failed.
  std::unordered_set<uint64_t> lost_nodes_ GUARDED_BY(mutex_);
  bool woken_ GUARDED_BY(mutex_) = false;
  bool closed_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> frozen_{false};  // changes under the mutex
  bool flush_failed_ GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> pending_bytes_{0};
  std::atomic<uint64_t> writing_since_ms_{0};  // 0: no transaction is being written
  // The stepping thread's own members: the changes taken and not committed yet.
  std::vector<CatalogChange> batch_;
  bool failing_ = false;
};

}  // namespace kvcachefs
