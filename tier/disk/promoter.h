// The promoter copies cold entries of a pool back to memory, many at a time, and reads from cold entries for
// which there is no memory.
//
// Threads: any thread may call Promoter's methods, which only queue. A caller that passes a waiter holds no
// lock, because after close() the waiter is told at once. Each PromoterLane belongs to one thread, which
// waits for the disk in step().
//
// Failure: told to the pool (Residency::end_promote) and to the waiters as a PromoteOutcome. After
// kIntactOnDisk the entry may be read(). kEnding: close() came before; a read() gets ESHUTDOWN then, and
// ENOMEM or EIO for other reasons.
//
// The disk writes straight into the mapped pages of the entry's file, on the entry's node (docs/facts.md
// "Disk reads into mapped pages").
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
#include <set>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/checksum.h"
#include "base/clock.h"
#include "base/mapping.h"
#include "base/mutex.h"
#include "tier/block_io.h"
#include "tier/disk/residency.h"
#include "tier/disk/spill_store.h"

namespace kvcachefs {

class PromoterLane;

class Promoter {
 public:
  static constexpr int kOpenPriority = INT32_MAX - 1;  // an open waits for the entry
  static constexpr int kWriterPriority = INT32_MAX;    // a writer waits: the disk cannot serve it
  static constexpr size_t kMaxQueued = 1 << 20;        // prefetches

  Promoter(SpillStore& store, Residency& residency, size_t most_queued = kMaxQueued)
      : store_(store), residency_(residency), most_queued_(most_queued) {}

  // request() brings the entry to memory once, however many callers ask for it. Higher priorities come first.
  // False: the queue of prefetches is full, and the waiter is not called.
  // A writer waits for memory until `patience_ends_ms` (now_coarse_ms()), also where the request goes on for
  // others; the lanes say how long all others wait.
  bool request(uint64_t ino, int priority, PromoteWaiter waiter = {}, uint64_t patience_ends_ms = 0)
      EXCLUDES(mutex_);
  struct Order {
    uint64_t ino = 0;
    int priority = 0;
    PromoteWaiter waiter;
  };
  // order() requests entries ahead of their opens, all at once, so that higher priorities come first however
  // they are listed. If one of them lacks memory and the evictor finds none, its waiter and those of all
  // ordered requests behind it get kNoMemory. `found`: ordered entries that are in memory.
  void order(std::vector<Order> orders, std::span<const uint64_t> found) EXCLUDES(mutex_);
  // True if an order under way names the entry. No order evicts such an entry.
  bool is_ordered(uint64_t ino) const EXCLUDES(mutex_);
  // How often the last order under way has ended. The lanes then demand no memory for it any more. An evictor
  // that saw their demands asks the room again before it evicts entries that are not ordered any more.
  uint64_t orders_ended() const { return orders_ended_; }
  using ReadWaiter = std::move_only_function<void(Result<std::span<const std::byte>>)>;
  // read() reads bytes of an entry that is cold and held (SpillStore::hold); fewer at the content's end.
  void read(CatalogContent content, uint64_t offset, size_t size, ReadWaiter waiter) EXCLUDES(mutex_);

  void add(PromoterLane& lane) EXCLUDES(mutex_);
  void wake() EXCLUDES(mutex_);
  // close() tells all remaining waiters, except those of reads that lanes have begun, and all later callers
  // that the tier is ending. Called after the last step() of every lane.
  void close() EXCLUDES(mutex_);
  size_t queued() const EXCLUDES(mutex_);
  // Bytes of entries that have their memory and are being read into it: none of that memory can leave before
  // they are complete.
  uint64_t arriving_bytes() const { return arriving_bytes_.load(std::memory_order_acquire); }

 private:
  friend class PromoterLane;
  struct Read {
    CatalogContent content;
    uint64_t offset = 0;
    size_t size = 0;
    ReadWaiter waiter;
  };
  // The negated priority, and the number of the start: the lowest comes first.
  using Place = std::pair<int64_t, uint64_t>;
  struct Pending {
    int priority = 0;
    bool started = false;
    bool ordered = false;
    bool lacks_memory = false;  // its place is in lacking_
    bool dropped = false;       // the lane ends it
    Place place;                // once it was started
    struct Waiting {
      PromoteWaiter waiter;
      uint64_t patience_ends_ms = 0;  // 0: it waits as long as the request goes on
    };
    std::vector<Waiting> waiters;
  };
  struct Next {
    uint64_t ino = 0;
    int priority = 0;
    bool ordered = false;
  };
  using PendingMap = std::unordered_map<uint64_t, Pending>;
  bool queue(uint64_t ino, int priority, Pending::Waiting waiting, bool ordered = false) REQUIRES(mutex_);
  PendingMap::iterator forget(PendingMap::iterator pending) REQUIRES(mutex_);
  void lacks_no_memory(Pending& pending) REQUIRES(mutex_);
  // The next step of an ordered request that was started and lacks memory.
  enum class Turn : uint8_t { kTake, kWait, kDropped };
  Turn turn_of(uint64_t ino) const EXCLUDES(mutex_);
  void lacks_memory(uint64_t ino) EXCLUDES(mutex_);  // ordered requests behind it wait
  void has_memory(uint64_t ino) EXCLUDES(mutex_);
  // Called if there is no memory for this ordered request: drops those behind it.
  void drop_behind(uint64_t ino) EXCLUDES(mutex_);
  std::optional<Next> next(int lowest_priority) EXCLUDES(mutex_);
  std::optional<Read> next_read() EXCLUDES(mutex_);
  int priority_of(uint64_t ino) const EXCLUDES(mutex_);  // the highest of its waiters
  // This changes when a caller joins a request that a lane has begun.
  uint64_t joins() const { return joins_.load(std::memory_order_acquire); }
  // Until when the least and the most patient writers wait for the entry.
  struct Patience {
    uint64_t first_ends_ms = UINT64_MAX;
    uint64_t last_ends_ms = 0;
  };
  Patience patience_of(uint64_t ino) const EXCLUDES(mutex_);
  // Writers whose patience is over are told that there is no memory. False: no waiter is left.
  bool give_up(uint64_t ino, uint64_t now_ms) EXCLUDES(mutex_);
  // done() answers the waiters. If there was no memory for a copy of this priority, and a caller of a higher
  // one has joined since, the request is queued again instead.
  void done(uint64_t ino, const PromoteOutcome& outcome, int priority) EXCLUDES(mutex_);
  void wake_one() REQUIRES(mutex_);

  SpillStore& store_;
  Residency& residency_;
  const size_t most_queued_;
  std::atomic<uint64_t> arriving_bytes_{0};
  std::atomic<uint64_t> joins_{0};
  mutable Mutex mutex_;
  PendingMap pending_ GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> ordered_ GUARDED_BY(mutex_);  // named by the orders that are under way
  std::atomic<size_t> ordered_pending_{0};                   // changes under mutex_
  std::atomic<uint64_t> orders_ended_{0};                    // the same
  std::set<Place> lacking_ GUARDED_BY(mutex_);
  uint64_t starts_ GUARDED_BY(mutex_) = 0;
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

  // One round: starts copies, waits at most `at_most` for the disk or for a request, ends copies.
  void step(std::chrono::milliseconds at_most);
  void wake() { channel_->wake(); }
  bool idle() const { return jobs_.empty() && waiting_.empty(); }
  // close() answers the reads that this lane has begun with ESHUTDOWN; waiters for its copies hear from
  // Promoter::close(). Called after the last step().
  void close();

 private:
  struct Job {
    PromoteTask task;
    Promoter::ReadWaiter reader;  // of a read(); the task then has only a content
    int priority = 0;             // with which it looked for memory: see Promoter::priority_of()
    bool ordered = false;         // by Promoter::order()
    // While the job waits for memory.
    std::unique_ptr<Room::Demand> demand;
    Room::Ticket ticket{};
    uint64_t begun_ms = now_coarse_ms();
    uint64_t patience_ends_ms = 0;
    uint64_t gives_up_ms = UINT64_MAX;  // when the least patient of its writers does
    bool abandoned = false;
    bool takes_promised = false;
    // While the bytes move.
    Mapping memory;
    Hasher hasher;
    bool verifying = false;  // reads piece after piece through `memory`, to check the checksum
    bool filling = false;   // the same, and writes the pieces to the file, which has holes that get no memory
    bool buffered = false;  // `memory` is one of buffers_, written to the file once it is complete
    uint64_t data_bytes = 0;
    uint64_t arriving_bytes = 0;  // this job's part of Promoter::arriving_bytes_
    uint64_t begin_bytes = 0;
    uint64_t end_bytes = 0;
    uint64_t sent_bytes = 0;
    unsigned flying = 0;
    PromoteOutcome outcome;  // so far
    uint64_t offset = 0;
    size_t size = 0;

    bool failed() const { return outcome.kind != PromoteOutcome::Kind::kPromoted; }
    bool piecewise() const { return verifying || filling; }
    // If there is no memory, the copy on the disk is verified for the waiters.
    bool verified_instead() const { return asked_for() && !abandoned; }
    bool asked_for() const { return priority >= Promoter::kOpenPriority; }
    bool is_order() const { return ordered && !asked_for(); }
    Room::Whose whose() const {
      return priority == Promoter::kWriterPriority ? Room::Whose::kWriter : Room::Whose::kPromotion;
    }
  };

  using Jobs = std::list<Job>;
  static constexpr uint64_t kPieceBytes = 1 << 20;
  static constexpr uint64_t kMovingBytes = uint64_t{256} << 20;

  static PromoteOutcome outcome_of(int error);
  void start_jobs();
  void start_read(Promoter::Read read);
  void start(Promoter::Next next);
  void raise(Job& job, int priority);
  void take_patience(Job& job);
  void demand(Job& job);
  Room::Whose demands_as(const Job& job) const;
  void drop_demand(Job& job);
  bool may_move() const;             // one job more
  bool holds(const Job& job) const;  // the free memory, when it was last looked at
  bool is_of_one_over(const Job& job) const { return promoter_.residency_.is_of_one_over(job.task.ino); }
  void look_at_free_memory();
  // These two take a job of waiting_. A job that they begin or end leaves the list.
  void wait_in_order(Jobs::iterator job);
  bool claim_memory(Jobs::iterator job);
  void begin_moving(Jobs::iterator job);
  void poll_waiting(Jobs::iterator job, const Room::Ticket& now, bool joined);
  Result<void> allocate(const Job& job) const;
  Result<Mapping> memory_for(Job& job);
  PromoteOutcome judge(Job& job);
  void verify_instead(Jobs::iterator waiting);
  void poll_room();
  uint64_t room_pause_ms() const;
  bool feed();
  bool send_piece(Job& job);
  void collect(std::chrono::milliseconds at_most);
  void advance(Job& job);
  void pass_hole(Job& job, const Extent& hole, uint64_t within);
  void finish(Job& job);
  struct Place {
    const Extent* extent = nullptr;
    uint64_t within = 0;
  };
  Place place_of(const Job& job, uint64_t at) const;

  Promoter& promoter_;
  Jobs jobs_;     // they have their memory, and their bytes move
  Jobs waiting_;  // these wait for memory, and the first are those of the highest priority
  uint64_t moving_bytes_ = 0;
  uint64_t demanded_bytes_ = 0;
  uint64_t polled_ns_ = 0;
  uint64_t joins_seen_ = 0;
  uint64_t free_bytes_ = 0;
  uint64_t unpromised_bytes_ = 0;
  uint64_t kept_from_orders_bytes_ = 0;
  bool order_lacks_ = false;                   // the first ordered request that lacks memory is in waiting_
  std::unique_ptr<Room::Demand> kept_demand_;  // for the memory that orders leave free
  std::vector<Mapping> buffers_;               // not in use
  std::vector<Job*> slots_;
  std::vector<size_t> free_slots_;
  std::vector<BlockRequest> sending_;
  std::vector<BlockCompletion> completions_;
  bool passed_hole_ = false;  // in this round: a job may have ended without a completion
  // The channel is the last member, so it is destroyed first: requests in flight keep their memory until the
  // disk is done.
  const std::unique_ptr<BlockChannel> channel_;
};

}  // namespace kvcachefs
