// How those who need room and the evictor wait for one another. Any thread. Every wait is bounded; returning
// early or late is harmless, since the caller tries again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "base/mutex.h"

namespace kvcachefs {

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
  // For what can wait for the next round where rounds come every few milliseconds: a wake-up at each create
  // took a fifth of a 2 MiB store on two cores.
  void wake_if_idle() EXCLUDES(mutex_) {
    if (!frequent_.load(std::memory_order_acquire)) wake();
  }
  void wait(std::chrono::milliseconds at_most) EXCLUDES(mutex_) {
    frequent_.store(at_most <= kFrequent, std::memory_order_release);
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

// One pool's demand for room, and the evictor's answers to it.
class Room {
 public:
  // Registers a demand while it lives.
  class Demand {
   public:
    Demand(Room& room, uint64_t bytes) : room_(room), bytes_(bytes) { room_.wanted_bytes_ += bytes_; }
    ~Demand() { room_.wanted_bytes_ -= bytes_; }
    Demand(const Demand&) = delete;
    Demand& operator=(const Demand&) = delete;

   private:
    Room& room_;
    uint64_t bytes_;
  };

  uint64_t wanted_bytes() const { return wanted_bytes_.load(std::memory_order_relaxed); }

  struct Ticket {
    uint64_t made;
    uint64_t exhausted;
  };
  // To be taken before the attempt whose failure leads to wait().
  Ticket ticket() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    return {made_, exhausted_};
  }
  enum class Answer { kTryAgain, kNothingToEvict };
  Answer wait(Ticket ticket, std::chrono::milliseconds at_most) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (made_ == ticket.made && exhausted_ == ticket.exhausted) condition_.wait_for(mutex_, at_most);
    return made_ == ticket.made && exhausted_ != ticket.exhausted ? Answer::kNothingToEvict
                                                                  : Answer::kTryAgain;
  }

  void room_made() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      ++made_;
    }
    condition_.notify_all();
  }
  void nothing_to_evict() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      ++exhausted_;
    }
    condition_.notify_all();
  }

 private:
  std::atomic<uint64_t> wanted_bytes_{0};
  Mutex mutex_;
  Condition condition_;
  uint64_t made_ GUARDED_BY(mutex_) = 0;
  uint64_t exhausted_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
