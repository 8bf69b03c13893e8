// The requests of one pool that take long: those that wait for its room, or the orders to it. The threads of
// the lane, which belong to no other pool, do them, so that the threads that take requests of all pools wait
// for none. They begin in the order in which they came. hand_over() is for any thread, with no lock held;
// step() is the work of one thread of the lane. Failure: hand_over() answers false, and its caller does the
// work itself.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>

#include "base/mutex.h"
#include "tier/room.h"

namespace kvcachefs {

class WaitingLane {
 public:
  using Job = std::move_only_function<void()>;
  // So many requests of a pool wait for room at once, the others behind them. With one, a request that needs
  // much room would hold up all others; each more may take from an earlier one what it waits for.
  static constexpr unsigned kThreads = 4;

  explicit WaitingLane(unsigned most_threads = kThreads) : most_threads_(most_threads) {}

  // Queues the job; a lane in which all threads are busy gets another by `start`, which is false if none can
  // be had. False: the lane has no thread, or has ended, and `job` is still the caller's.
  bool hand_over(Job& job, const std::function<bool()>& start) EXCLUDES(mutex_);
  // Does the next job, for which it waits for so long. False: there was none, and the thread ends.
  bool step(std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  // How many requests are in the lane.
  size_t size() const { return size_.load(std::memory_order_relaxed); }
  // True if this caller has to leave to the requests in the lane what they wait for.
  bool goes_before(Patience patience) const { return !patience.may_wait && size() > 0; }

  // The daemon ends: from here on no call waits for the pool's room.
  void end_waits() { waits_ended_.store(true, std::memory_order_release); }
  bool waits_ended() const { return waits_ended_.load(std::memory_order_acquire); }
  // The call comes when no request comes any more: step() does what is left, and then ends its thread.
  void end() EXCLUDES(mutex_);

 private:
  const unsigned most_threads_;
  Mutex mutex_;
  Condition condition_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  std::atomic<size_t> size_{0};  // with those that threads have in hand
  unsigned threads_ GUARDED_BY(mutex_) = 0;
  unsigned idle_ GUARDED_BY(mutex_) = 0;  // of the threads; one that was just started is idle
  bool ended_ GUARDED_BY(mutex_) = false;
  std::atomic<bool> waits_ended_{false};
};

}  // namespace kvcachefs
