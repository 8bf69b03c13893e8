// The daemon's threads. This is the only file that starts any, apart from libfuse's own threads, one a
// processor, when it serves over io_uring. Main thread. A thread that cannot be started ends the process,
// because nothing could be served without it.
#pragma once

#include <atomic>
#include <chrono>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "fs/session.h"
#include "tier/pool/memory_watch.h"
#include "tier/pool/pools.h"
#include "tier/recovery/away_disks.h"

namespace kvcachefs {

class Workers {
 public:
  Workers(Session& session, Pools& pools, Wakeup& evictor_wakeup)
      : session_(session), pools_(pools), evictor_wakeup_(evictor_wakeup) {}
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // The number is at least 8, because a pool that is made or removed holds a thread as long as it takes, and
  // where many writes wait for room, so do they (fs/waiting_copies.h). It is at most 16, because more threads
  // only contend for the one queue of the device.
  static unsigned default_server_threads();

  // As OnSeveralThreads (tier/children.h), of which there are fewer if the host has no more.
  static void on_several_threads(const std::function<void()>& work);
  // The call starts the threads that take requests. They need no other where Session serves in part.
  void start_servers(unsigned server_threads);
  // The call starts the threads of an adopted pool that serve clients from its disk before that is in use.
  void read_before_use(const std::shared_ptr<Pool>& pool) EXCLUDES(mutex_);
  // The call starts a thread for each pool of which something is to be brought back from its disk. It answers
  // when each of these pools can be served, and after `patience` more, unless all is back sooner. The first
  // failure up to then is the answer; a later one is for the log.
  Result<void> restore_disks(std::chrono::milliseconds patience) EXCLUDES(mutex_);
  // The call starts all others, and those that carry out what was put aside.
  void start(unsigned server_threads);
  // The job is done on a thread that no request waits for. It comes after start().
  void do_behind(WaitingLane::Job job) EXCLUDES(mutex_);
  // The call looks regularly whether the disk of a pool without its disk can be had again, if there is such a
  // pool. It comes after start().
  void watch(AwayDisks& disks);
  void watch(MemoryWatch& memory);
  bool found_disk() const { return away_disks_ != nullptr && away_disks_->found(); }
  // The time at which the evictor last ended a turn; it takes several a second. Only the evictor counts,
  // because the disk tiers' threads may wait for a disk without a limit.
  uint64_t last_turn_ns() const { return last_turn_ns_; }
  // The call comes after Session::unmount().
  void stop();

 private:
  void evict();
  // The call starts a thread for a lane of the pool. It ends when there was nothing to do for a while. False:
  // the system gives no thread.
  bool start_helper(const std::shared_ptr<Pool>& pool, WaitingLane& lane) EXCLUDES(mutex_);
  void join_ended_helpers() EXCLUDES(mutex_);
  void end_helpers() EXCLUDES(mutex_);
  template <class Serve>
  void start_server(Serve serve);
  // The call starts the threads of a pool that has got a disk tier: one spills, one commits, one to four
  // promote, and one scrubs.
  void run_disk(const std::shared_ptr<Pool>& pool) EXCLUDES(mutex_);
  struct DiskThreads {
    std::shared_ptr<Pool> pool;
    std::vector<std::thread> threads;
    bool is_whole = false;  // it has all its threads, or restore() will see to that
  };
  // What comes back of a pool while it is served; until then its disk is only read from.
  struct Restore {
    enum class State : uint8_t { kBegun, kInUse, kEnded };
    std::shared_ptr<Pool> pool;
    std::thread thread;
    State state = State::kBegun;
    Result<void> outcome;
  };
  void restore(Restore& its) EXCLUDES(mutex_);
  void came_to(Restore& its, Restore::State state, Result<void> outcome = {}) EXCLUDES(mutex_);
  // Makes a place for the pool's threads if it has none.
  DiskThreads& threads_of(const std::shared_ptr<Pool>& pool) REQUIRES(mutex_);
  // Before its disk goes.
  void end_reading(const Pool& pool) EXCLUDES(mutex_);
  void run_promoters(DiskThreads& disk) REQUIRES(mutex_);
  void run_others(DiskThreads& disk) REQUIRES(mutex_);
  static void give_up(Pool& pool);
  // A restore on which nothing depends is given up, another is waited for up to the deadline.
  void end_restores(uint64_t deadline_ns) EXCLUDES(mutex_);
  template <class Step>
  void run_thread(const char* name, int nice, DiskThreads& disk, Step step) REQUIRES(mutex_);
  void end_servers();
  void finish_disks();

  Session& session_;
  Pools& pools_;
  Wakeup& evictor_wakeup_;
  AwayDisks* away_disks_ = nullptr;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> last_turn_ns_{now_ns()};
  uint64_t last_activity_ = 0;  // only the evictor thread uses it
  std::vector<std::thread> servers_;
  std::atomic<unsigned> serving_{0};
  std::vector<std::thread> threads_;
  Mutex mutex_;
  void end_disks_of_removed_pools() EXCLUDES(mutex_);
  // A disk tier is closed once, when all its threads have ended.
  static void end(std::vector<DiskThreads> disks);
  std::vector<DiskThreads> disks_ GUARDED_BY(mutex_);
  std::list<Restore> restores_ GUARDED_BY(mutex_);
  Condition restored_;
  std::atomic<bool> disks_stopping_{false};
  struct Passing {
    std::thread thread;
    std::atomic<bool> done{false};
  };
  std::list<Passing> helpers_ GUARDED_BY(mutex_);
  std::list<Passing> enders_;  // of removed pools' disks; the evictor's, and stop()'s after it has ended
};

}  // namespace kvcachefs
