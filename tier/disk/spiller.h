// The spiller copies entries of a pool to its disk, in the order of the requests, several at a time.
//
// Threads: any thread may call request(), wake() and backlog_bytes(), which only queue, even with an entry's
// shard held. A caller that passes a waiter holds no lock, because after close() the waiter is told at once.
// step() belongs to one thread, which waits for the disk there.
//
// Failure: a copy that cannot be made is reported to the pool (Residency::end_spill) and to its waiters. A
// full disk is waited for: kFullPatienceMs, and longer while the catalog's log has changes to commit. A disk
// that refuses writes is tried again for as long as it does, with one copy after each pause, and at once with
// a copy that has a waiter. close() drops all requests and tells their waiters ESHUTDOWN.
//
// The bytes go from the entry's own pages to the disk where an F_RDLCK lease has proven that no process can
// write the file (docs/facts.md "F_SETLEASE tells whether a file is in use"). Else they go through buffers,
// so that the checksum is of the bytes written.
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
#include "tier/catalog/content_layout.h"
#include "tier/disk/piece_buffers.h"
#include "tier/disk/residency.h"
#include "tier/disk/spill_store.h"

namespace kvcachefs {

class Spiller {
 public:
  static constexpr unsigned kDepth = 32;

  Spiller(SpillStore& store, Residency& residency, std::unique_ptr<BlockChannel> channel);

  // Urgent requests come first. The waiter is called when the copy is on the disk, durable or not.
  void request(uint64_t ino, uint64_t bytes, bool urgent, Waiter waiter = {}) EXCLUDES(mutex_);
  // The bytes of requests that are queued or under way and will end soon.
  uint64_t backlog_bytes() const { return backlog_bytes_.load(std::memory_order_relaxed); }
  // idle() is true if all remaining requests wait for a mapping to end.
  bool idle() const { return unfinished_ == stuck_; }

  // One round: starts copies, waits at most `at_most` for the disk or for a request, ends copies.
  void step(std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() { channel_->wake(); }
  void set_waiter_patience_ms(uint64_t patience_ms) { waiter_patience_ms_ = patience_ms; }  // for tests
  // close() tells remaining waiters, and later callers, ESHUTDOWN. It is called after the last step().
  void close() EXCLUDES(mutex_);

 private:
  struct Request {
    uint64_t ino = 0;
    uint64_t bytes = 0;
    bool urgent = false;
    Waiter waiter;
    uint64_t asked_ms = 0;
    uint64_t not_before_ms = 0;
    uint64_t full_since_ms = 0;  // 0: the disk was not full for it
    unsigned attempts = 0;
    unsigned closing_tries = 0;
    bool stuck = false;                // waits for a mapping to end: not part of the backlog
    std::vector<Extent> refused = {};  // extents that the disk refused, kept until the copy has others
  };
  struct Copy {
    Request request;
    SpillTask task;
    std::vector<Extent> extents;
    uint64_t data_bytes = 0;  // what goes to the disk, in whole units
    Mapping mapping;          // of a mappable entry
    Hasher hasher;
    size_t extent = 0;
    uint64_t within_extent = 0;
    uint64_t sent_bytes = 0;
    unsigned flying = 0;
    bool written = false;  // its file was written or cut short meanwhile
    int error = 0;         // the disk's or the system's
    // Nothing of it is to be sent any more.
    bool is_over() const { return written || error != 0 || sent_bytes == task.size_bytes; }
  };
  struct Slot {
    Copy* copy = nullptr;
    std::optional<size_t> buffer;
  };
  struct Piece {
    Copy* copy = nullptr;
    std::span<std::byte> content;  // without the padding of the last block
    uint64_t hole_units = 0;       // of a hole; there is no content then
  };

  std::optional<Request> next_request() EXCLUDES(mutex_);
  void queue_again(Request request, uint64_t pause_ms) EXCLUDES(mutex_);
  void tell_the_patient() EXCLUDES(mutex_);
  void start_copies() EXCLUDES(mutex_);
  bool start(Request request) EXCLUDES(mutex_);  // false: the disk is full for now
  bool wait_for_space(Request request, const SpillTask& task, const ContentLayout& layout) EXCLUDES(mutex_);
  bool is_wasteful(const ContentLayout& layout) const;
  bool is_unchanged(const SpillTask& task, const ContentLayout& layout) const;
  std::chrono::milliseconds pause() const EXCLUDES(mutex_);
  bool feed();  // true: there is more to send and room for it
  bool send_piece(Copy& copy);
  void pass_holes(Copy& copy);
  void collect(std::chrono::milliseconds at_most);
  void finish(Copy& copy) EXCLUDES(mutex_);
  SpillOutcome outcome_of(const Copy& copy) const;
  void settle(Request& request, Result<void> outcome) EXCLUDES(mutex_);
  void settle_or_repeat(Request request, bool taken) EXCLUDES(mutex_);
  void was_refused(Request request, std::vector<Extent> extents, int error) EXCLUDES(mutex_);
  bool resting() const;

  SpillStore& store_;
  Residency& residency_;
  std::atomic<uint64_t> backlog_bytes_{0};
  std::atomic<size_t> unfinished_{0};
  std::atomic<size_t> stuck_{0};
  uint64_t waiter_patience_ms_ = 30'000;

  // The stepping thread's own members.
  std::list<Copy> copies_;
  uint64_t copying_bytes_ = 0;
  uint64_t rest_ms_ = 0;  // 0: the disk takes writes
  uint64_t rest_ends_ms_ = 0;
  // The disk has had no space for a copy since then; 0: it has taken one after that.
  uint64_t full_since_ms_ = 0;
  std::vector<Slot> slots_{kDepth};
  std::vector<size_t> free_slots_;
  PieceBuffers buffers_;
  std::vector<BlockRequest> sending_;
  std::vector<Piece> hashing_;
  bool passed_holes_ = false;  // in this round: a copy may have ended without a completion
  std::vector<BlockCompletion> completions_;

  mutable Mutex mutex_;
  std::deque<Request> urgent_ GUARDED_BY(mutex_);
  std::deque<Request> requests_ GUARDED_BY(mutex_);
  std::deque<Request> later_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;

  // The channel is the last member, so it is destroyed first: requests in flight keep their memory until the
  // disk is done.
  const std::unique_ptr<BlockChannel> channel_;
};

}  // namespace kvcachefs
