// Capacity: how much memory a pool may have, what of it is promised to writers, and how a caller that needs
// room waits for the evictor. It moves no bytes and evicts nothing. Any thread; a leaf among the locks.
// wait_for_room() holds none while it waits, and every wait is bounded. Never fails.
#pragma once

#include <atomic>
#include <cstdint>

#include "alloc/memory_arena.h"
#include "tier/counters.h"
#include "tier/entries/shares.h"
#include "tier/pool/entry_size.h"
#include "tier/pool/pool_limit.h"
#include "tier/pool/surroundings.h"
#include "tier/pool/waiting_lane.h"
#include "tier/pool/writers.h"
#include "tier/pool_options.h"
#include "tier/room.h"

namespace kvcachefs {

class Capacity {
 public:
  // Bytes that a writer which has outgrown its reservation may add before the evictor looks again. A tmpfs
  // takes 26 GB/s with huge pages (docs/facts.md "tmpfs with huge=within_size"), so 64 MiB last 2.5 ms, and a
  // round comes every millisecond.
  static constexpr uint64_t kGrowthBytes = uint64_t{64} << 20;
  // The kernel counts a tmpfs's blocks in batches per processor (lib/percpu_counter.c): not all that looks
  // free can be had.
  static constexpr uint64_t kCountingSlackBytes = 256 << 10;

  Capacity(const PoolOptions& options, const PoolSurroundings& surroundings, const MemoryArena& arena,
           PoolCounters& counters, Shares& shares)
      : surroundings_(surroundings),
        arena_(arena),
        counters_(counters),
        shares_(shares),
        limit_(options),
        entry_size_bytes_(options.entry_size_bytes) {
    shares_.set_share(options.user_share_percent);
    shares_.set_memory(arena.usage());
    shares_.set_most_entries(options.max_entries);
  }

  // --- settings ---
  PoolLimit& limit() { return limit_; }
  uint64_t size_bytes() const { return limit_.size_bytes(); }
  void set_entry_size(uint64_t bytes) { entry_size_bytes_ = bytes; }  // 0: it is learned
  // While nothing is lost for room, because the disk gets it first, a caller waits longer for it.
  void set_durability(Durability durability) { loses_nothing_ = durability != Durability::kNone; }
  void close() { closed_.store(true, std::memory_order_release); }  // no entry will be evicted any more
  bool closed() const { return closed_.load(std::memory_order_acquire); }

  // --- what writers need ---
  void stored(uint64_t entry_bytes, uint8_t name_class = 0) {
    learner_.closed(entry_bytes);
    by_name_.closed(name_class, entry_bytes);
  }
  uint64_t expected_entry_bytes() const;
  uint64_t learned_entry_bytes() const;  // limited to what a wrong guess may cost; 0: nothing learned
  // The range that is reserved for an entry before its first write. Its size was set, or was learned of names
  // of the entry's class or of all names, or is the most that may be learned. If entries of such names may be
  // small, the first huge page is left out, because a small entry would pay for clearing it.
  struct Reservation {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  Reservation reservation(uint8_t name_class = 0) const;
  bool promises_expected_size() const { return promise_bytes() == expected_entry_bytes(); }
  // A writer opens a file that takes `charged_bytes`. False: it was promised no memory, and its writes come
  // to the daemon.
  bool admit_writer(uint64_t ino, uint64_t charged_bytes, uint8_t owner = 0);
  Writers& writers() { return writers_; }
  // Bytes that writers which outgrew their reservation may write before the evictor looks again; of those,
  // bytes of writers within their shares.
  void expect_growth(uint64_t bytes, uint64_t within_shares) {
    growth_bytes_.store(bytes, std::memory_order_relaxed);
    growth_within_.store(within_shares, std::memory_order_relaxed);
  }
  // True if the free memory may not last for the writers with passthrough until the next round: they cannot
  // wait and get ENOSPC. Without `even_over` those who are over their shares may get it.
  bool writer_outruns(bool even_over = true) const;
  // Changes when memory is taken or freed or a file is made: tells writers at work from merely open files.
  uint64_t activity() const;

  // --- room ---
  Room& room() { return room_; }
  // True if this many bytes are free that were promised to no other writer.
  bool has_room(uint64_t bytes, uint64_t own_promise_bytes = 0) const;
  uint64_t free_bytes(bool even_promised) const;
  // Waits for the evictor or for other writers. Without patience it says that it would wait, as it would
  // behind the requests in waiting(). The room is for this user. For a user over the share only entries of
  // such users leave, and the user leaves some room to others.
  Waited wait_for_room(uint64_t bytes, Patience patience, uint64_t own_promise_bytes = 0, uid_t user = 0);
  WaitingLane& waiting() { return waiting_; }
  // Bytes that must leave now; 0: none. Without `even_over`: bytes that would have to leave if users over
  // their shares took just their shares and asked for nothing. So much of the other users' entries may leave.
  uint64_t pressure_bytes(bool even_over = true);
  // The pool gives way to the host: this many bytes more leave than were asked for before.
  void give_way(uint64_t bytes);
  uint64_t leaving_bytes() const;  // the part of it that has not left yet
  bool wants_eviction() const {
    return evicting_ || lacks_outgrowth_ || giving_way_ || room_.wanted_bytes() > 0;
  }

 private:
  uint64_t pressure_of_host(uint64_t used_bytes);
  uint64_t growth_bytes(bool even_over) const {
    return (even_over ? growth_bytes_ : growth_within_).load(std::memory_order_relaxed);
  }
  uint64_t promise_bytes() const;  // what a writer must be promised for passthrough

  const PoolSurroundings& surroundings_;
  const MemoryArena& arena_;
  PoolCounters& counters_;
  Shares& shares_;
  Room room_;
  WaitingLane waiting_;
  Writers writers_;
  EntrySizeLearner learner_;
  SizesByName by_name_;
  PoolLimit limit_;
  std::atomic<uint64_t> entry_size_bytes_;
  std::atomic<uint64_t> growth_bytes_{0};
  std::atomic<uint64_t> growth_within_{0};
  std::atomic<bool> loses_nothing_{false};
  std::atomic<bool> closed_{false};
  std::atomic<bool> evicting_{false};         // between the high and the low watermark
  std::atomic<bool> lacks_outgrowth_{false};  // reservations hold what outgrowing writers need
  std::atomic<bool> giving_way_{false};
};

}  // namespace kvcachefs
