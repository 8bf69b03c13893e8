// Callers that need room and the evictor wait for one another here. Any thread. Every wait is bounded;
// because the caller tries again, returning early or late is harmless.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcachefs {

// How long a caller may wait for room. It goes down by value to where the wait is.
struct Patience {
  // When the request came. The bounds of a wait count from here, also where the request was queued first.
  uint64_t begun_ns = now_ns();
  // False: a thread that serves all pools asks, which must not wait for the room of one.
  bool may_wait = true;
};
// What became of a call that may need room, if it is no error.
enum class Tried : uint8_t {
  kDone,
  kWouldWait  // nothing was done, or what the result says, because the rest takes patience
};
// What became of a wait for room.
enum class Waited : uint8_t { kRoom, kNoRoom, kWouldWait };

// Wakes the evictor's thread.
class Wakeup {
 public:
  void wake() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      woken_ = true;
    }
    condition_.notify_one();
  }
  // The caller has work that can wait for the next round while rounds come every few milliseconds. A wake-up
  // at each create took a fifth of the time of a 2 MiB store on two cores.
  void wake_if_idle() EXCLUDES(mutex_) {
    if (!frequent_) wake();
  }
  void wait(std::chrono::milliseconds at_most) EXCLUDES(mutex_) {
    const bool frequent = at_most <= kFrequent;
    // Work that came since the last short wait has woken nothing: the caller looks once more before it waits
    // for long.
    if (frequent_.exchange(frequent) && !frequent) return;
    MutexLock lock(mutex_);
    if (!woken_) condition_.wait_for(mutex_, at_most);
    woken_ = false;
  }

 private:
  static constexpr auto kFrequent = std::chrono::milliseconds(2);
  std::atomic<bool> frequent_{false};
  Mutex mutex_;
  Condition condition_;
  bool woken_ GUARDED_BY(mutex_) = false;
};

// The demand of one pool for room, and the evictor's answers.
class Room {
 public:
  // Because a promotion can do without room (its reader is then served from the disk), no entry is discarded
  // for it. kOver: the demand of a user over the share, for whom only entries of such users leave.
  enum class Whose : uint8_t { kWriter, kPromotion, kOver };

  // A Demand is registered with the Room for as long as it lives.
  class Demand {
   public:
    Demand(Room& room, Whose whose, uint64_t bytes) : room_(room), whose_(whose), bytes_(bytes) {
      room_.wanted_bytes_[index(whose_)] += bytes_;
    }
    ~Demand() { room_.wanted_bytes_[index(whose_)] -= bytes_; }
    Demand(const Demand&) = delete;
    Demand& operator=(const Demand&) = delete;

   private:
    Room& room_;
    Whose whose_;
    uint64_t bytes_;
  };

  uint64_t wanted_bytes(Whose whose) const {
    return wanted_bytes_[index(whose)].load(std::memory_order_relaxed);
  }
  uint64_t wanted_bytes() const {
    return wanted_bytes(Whose::kWriter) + wanted_bytes(Whose::kPromotion) + wanted_bytes(Whose::kOver);
  }

  struct Ticket {
    uint64_t made;
    std::array<uint64_t, 3> exhausted;
  };
  // The caller takes a ticket before the attempt whose failure leads it to wait().
  Ticket ticket() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return {made_, exhausted_};
  }
  enum class Answer { kTryAgain, kNothingToEvict };
  Answer wait(Whose whose, Ticket ticket, std::chrono::milliseconds at_most) EXCLUDES(mutex_) {
    const uint64_t before = ticket.exhausted[index(whose)];
    MutexLock lock(mutex_);
    if (made_ == ticket.made && exhausted_[index(whose)] == before) condition_.wait_for(mutex_, at_most);
    return answer(whose, ticket, {made_, exhausted_});
  }
  // What the evictor has answered between the two tickets, for a caller that does not wait here.
  static Answer answer(Whose whose, const Ticket& before, const Ticket& now) {
    const bool exhausted = now.exhausted[index(whose)] != before.exhausted[index(whose)];
    return now.made == before.made && exhausted ? Answer::kNothingToEvict : Answer::kTryAgain;
  }

  void room_made() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      ++made_;
    }
    condition_.notify_all();
  }
  // A round that found nothing for a writer found nothing for the others either, because it tries harder for
  // a writer.
  void nothing_to_evict(Whose whose) EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      for (size_t each = 0; each < exhausted_.size(); ++each)
        if (whose == Whose::kWriter || each == index(whose)) ++exhausted_[each];
    }
    condition_.notify_all();
  }

 private:
  static constexpr size_t index(Whose whose) { return static_cast<size_t>(whose); }

  std::array<std::atomic<uint64_t>, 3> wanted_bytes_{};
  Mutex mutex_;
  Condition condition_;
  uint64_t made_ GUARDED_BY(mutex_) = 0;
  std::array<uint64_t, 3> exhausted_ GUARDED_BY(mutex_) = {};
};

}  // namespace kvcachefs
