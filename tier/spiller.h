// Copies entries of a pool to its disk, in the order they were asked for, several at a time. request(),
// wake() and backlog_bytes() are for any thread and only queue, with an entry's shard held too; but a request
// with a waiter comes with no lock held, since after close() the waiter is told at once. step() is for one
// thread, which waits for the disk there. Failure: a copy that cannot be made is told to the pool
// (Residency::end_spill) and to who waits for it; a full disk is waited for, a while. A disk that refuses
// writes is tried again as long as it does, with one copy after pauses, and at once with what somebody waits
// for. After close() requests are dropped, and their waiters told ESHUTDOWN.
//
// The bytes go from the entry's own pages to the disk where nobody can write them (Linux' F_RDLCK lease
// proved it, spikes/lease.c); else through buffers of this, so that the checksum is of what was written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <vector>

#include "base/checksum.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "tier/block_io.h"
#include "tier/residency.h"
#include "tier/spill_store.h"

namespace kvcachefs {

class Spiller {
 public:
  static constexpr unsigned kDepth = 32;

  Spiller(SpillStore& store, Residency& residency, std::unique_ptr<BlockChannel> channel);
  ~Spiller();
  Spiller(const Spiller&) = delete;
  Spiller& operator=(const Spiller&) = delete;

  // Urgent ones come first. The waiter hears when the copy is on the disk, durable or not.
  void request(uint64_t ino, uint64_t bytes, bool urgent, Waiter waiter = {}) EXCLUDES(mutex_);
  // What is queued or under way, and will end soon.
  uint64_t backlog_bytes() const { return backlog_bytes_.load(std::memory_order_relaxed); }
  // Nothing is left but what waits for a mapping's end.
  bool idle() const { return unfinished_ == stuck_; }

  // One round: starts copies, waits at most so long for the disk or for a request, ends copies.
  void step(std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() { channel_->wake(); }
  // Tells who still waits, and whoever comes later, that nothing more will come. After the last step().
  void close() EXCLUDES(mutex_);

 private:
  struct Request {
    uint64_t ino = 0;
    uint64_t bytes = 0;
    bool urgent = false;
    Waiter waiter;
    uint64_t not_before_ms = 0;
    uint64_t full_since_ms = 0;  // 0: it has not met a full disk
    unsigned attempts = 0;
    unsigned closing_tries = 0;
    bool stuck = false;  // waits for something that is not the disk's to end: no part of the backlog
    std::vector<Extent> refused = {};  // where the disk did not take it: kept until it has another place
  };
  struct Copy {
    Request request;
    SpillTask task;
    std::vector<Extent> extents;
    Mapping mapping;  // of mappable ones
    Hasher hasher;
    size_t extent = 0;
    uint64_t within_extent = 0;
    uint64_t sent_bytes = 0;
    unsigned flying = 0;
    int error = 0;
  };
  static constexpr size_t kNoBuffer = SIZE_MAX;
  struct Slot {
    Copy* copy = nullptr;
    size_t buffer = kNoBuffer;
  };
  struct Piece {
    Copy* copy = nullptr;
    std::span<std::byte> content;  // without what fills the last block up
  };

  std::optional<Request> next_request() EXCLUDES(mutex_);
  void queue_again(Request request, uint64_t pause_ms) EXCLUDES(mutex_);
  void start_copies() EXCLUDES(mutex_);
  bool start(Request request) EXCLUDES(mutex_);  // false: the disk is full for now
  bool wait_for_space(Request request, const SpillTask& task) EXCLUDES(mutex_);
  bool is_unchanged(const SpillTask& task);
  std::chrono::milliseconds pause() const EXCLUDES(mutex_);
  bool feed();  // true: there is more to send and room for it
  bool send_piece(Copy& copy);
  std::optional<size_t> take_buffer();
  void collect(std::chrono::milliseconds at_most);
  void finish(Copy& copy) EXCLUDES(mutex_);
  void settle(Request& request, Result<void> outcome) EXCLUDES(mutex_);
  void was_refused(Request request, std::vector<Extent> extents, int error) EXCLUDES(mutex_);
  bool resting() const;

  SpillStore& store_;
  Residency& residency_;
  std::atomic<uint64_t> backlog_bytes_{0};
  std::atomic<size_t> unfinished_{0};
  std::atomic<size_t> stuck_{0};

  // The stepping thread's own.
  std::list<Copy> copies_;
  uint64_t copying_bytes_ = 0;
  uint64_t rest_ms_ = 0;  // 0: the disk takes what is written
  uint64_t rest_ends_ms_ = 0;
  std::vector<Slot> slots_{kDepth};
  std::vector<size_t> free_slots_;
  std::vector<Mapping> buffers_;
  std::vector<size_t> free_buffers_;
  std::vector<BlockRequest> sending_;
  std::vector<Piece> hashing_;
  std::vector<BlockCompletion> completions_;

  mutable Mutex mutex_;
  std::deque<Request> urgent_ GUARDED_BY(mutex_);
  std::deque<Request> requests_ GUARDED_BY(mutex_);
  std::deque<Request> later_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;

  // The last, so that it goes first: what is in flight at the end has its memory until the disk is done.
  const std::unique_ptr<BlockChannel> channel_;
};

}  // namespace kvcachefs
