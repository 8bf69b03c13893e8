// Copies cold entries of a pool back to memory, many at a time, and reads from those that no memory can be
// had for. request(), read() and the rest of Promoter are for any thread and only queue; what has a waiter
// comes with no lock held, since after close() the waiter is told at once. Each PromoterLane belongs to one
// thread, which waits for the disk in step(). Failure: told to the pool (Residency::end_promote) and to who
// waits. kIntactOnDisk: there was no memory; the copy's checksum is right, and the entry may be read().
// ENOSPC and ENOMEM: the same, but nobody has looked at the copy. ESHUTDOWN: close() came before.
//
// The disk writes straight into the mapped pages of the entry's file (spikes/promote.c), on the entry's node.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "base/checksum.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "tier/block_io.h"
#include "tier/residency.h"
#include "tier/spill_store.h"

namespace kvcachefs {

class PromoterLane;

class Promoter {
 public:
  static constexpr int kOpenPriority = INT32_MAX;  // somebody waits for it
  static constexpr size_t kMaxQueued = 1 << 20;    // of prefetches

  Promoter(SpillStore& store, Residency& residency, size_t most_queued = kMaxQueued)
      : store_(store), residency_(residency), most_queued_(most_queued) {}

  // The entry comes to memory once, however many ask. Higher priorities first. False: the queue of
  // prefetches is full; the waiter is not called then.
  bool request(uint64_t ino, int priority, Waiter waiter = {}) EXCLUDES(mutex_);
  using ReadWaiter = std::move_only_function<void(Result<std::span<const std::byte>>)>;
  // Of an entry that is cold and held (SpillStore::hold): its bytes, fewer at its end.
  void read(CatalogContent content, uint64_t offset, size_t size, ReadWaiter waiter) EXCLUDES(mutex_);

  void add(PromoterLane& lane) EXCLUDES(mutex_);
  void wake() EXCLUDES(mutex_);
  // Answers all who still wait, but for the reads that lanes have begun, and whoever comes later, with
  // ESHUTDOWN. After the last step() of every lane.
  void close() EXCLUDES(mutex_);
  size_t queued() const EXCLUDES(mutex_);

 private:
  friend class PromoterLane;
  struct Read {
    CatalogContent content;
    uint64_t offset = 0;
    size_t size = 0;
    ReadWaiter waiter;
  };
  struct Pending {
    int priority = 0;
    bool started = false;
    std::vector<Waiter> waiters;
  };
  struct Next {
    uint64_t ino = 0;
    bool asked_for = false;
  };
  bool queue(uint64_t ino, int priority, Waiter waiter) REQUIRES(mutex_);
  std::optional<Next> next() EXCLUDES(mutex_);
  std::optional<Read> next_read() EXCLUDES(mutex_);
  bool asked_for(uint64_t ino) const EXCLUDES(mutex_);
  void done(uint64_t ino, const Result<void>& outcome) EXCLUDES(mutex_);
  void wake_one() REQUIRES(mutex_);

  SpillStore& store_;
  Residency& residency_;
  const size_t most_queued_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, Pending> pending_ GUARDED_BY(mutex_);
  std::map<int, std::deque<uint64_t>, std::greater<>> queue_ GUARDED_BY(mutex_);
  std::deque<Read> reads_ GUARDED_BY(mutex_);
  std::vector<PromoterLane*> lanes_ GUARDED_BY(mutex_);
  size_t next_lane_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

class PromoterLane {
 public:
  static constexpr unsigned kDepth = 64;

  PromoterLane(Promoter& promoter, std::unique_ptr<BlockChannel> channel);
  ~PromoterLane();
  PromoterLane(const PromoterLane&) = delete;
  PromoterLane& operator=(const PromoterLane&) = delete;

  // One round: starts copies, waits at most so long for the disk or for a request, ends copies.
  void step(std::chrono::milliseconds at_most);
  void wake() { channel_->wake(); }
  bool idle() const { return jobs_.empty(); }
  // Answers the reads it has begun with ESHUTDOWN; who waits for one of its copies hears it from
  // Promoter::close(). After the last step().
  void close();

 private:
  struct Job {
    PromoteTask task;
    Promoter::ReadWaiter reader;  // of a read(); the task is then only its content
    bool asked_for = false;
    // Waiting for memory.
    std::unique_ptr<Room::Demand> demand;
    Room::Ticket ticket{};
    uint64_t patience_ends_ms = 0;
    // Moving.
    Mapping memory;
    Hasher hasher;
    bool verifying = false;  // piece after piece through `memory`, to see whether it is intact
    bool buffered = false;   // `memory` is one of buffers_, and is written to the file when it is whole
    uint64_t begin_bytes = 0;
    uint64_t end_bytes = 0;
    uint64_t sent_bytes = 0;
    unsigned flying = 0;
    int error = 0;
    uint64_t offset = 0;
    size_t size = 0;
  };

  void start_jobs();
  void start_read(Promoter::Read read);
  void start(Promoter::Next next);
  void claim_memory(Job& job);
  Result<Mapping> memory_for(Job& job);
  Result<void> judge(Job& job);
  void verify_instead(Job& job);
  void poll_room();
  bool feed();
  bool send_piece(Job& job);
  void collect(std::chrono::milliseconds at_most);
  void advance(Job& job);
  void finish(Job& job);
  BlockRequest request_for(const Job& job, uint64_t at, uint64_t size, size_t slot) const;

  Promoter& promoter_;
  std::list<Job> jobs_;
  uint64_t moving_bytes_ = 0;
  std::vector<Mapping> buffers_;  // free ones
  std::vector<Job*> slots_;
  std::vector<size_t> free_slots_;
  std::vector<BlockRequest> sending_;
  std::vector<BlockCompletion> completions_;
  // The last, so that it goes first: what is in flight at the end has its memory until the disk is done.
  const std::unique_ptr<BlockChannel> channel_;
};

}  // namespace kvcachefs
