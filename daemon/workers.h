// The daemon's threads: the only file that starts any (libfuse's own, one a processor, aside when it serves
// over io_uring). Main thread. A thread that cannot be started ends the process: there is nothing to serve
// with.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "fs/session.h"
#include "tier/away_disks.h"
#include "tier/pools.h"

namespace kvcachefs {

class Workers {
 public:
  Workers(Session& session, Pools& pools, Wakeup& evictor_wakeup)
      : session_(session), pools_(pools), evictor_wakeup_(evictor_wakeup) {}
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Eight at least: a create that waits for room holds one, and who could make the room must not wait behind
  // it. More than 16 only contend for the one queue of the device.
  static unsigned default_server_threads();

  void start(unsigned server_threads);
  // If a pool is without its disk, looks whether it can be had again. After start().
  void watch(AwayDisks& disks);
  bool found_disk() const { return away_disks_ != nullptr && away_disks_->found(); }
  // When the evictor last ended a turn, of which it takes several a second. The disk tiers' threads may
  // wait for a disk for as long as that likes.
  uint64_t last_turn_ns() const { return last_turn_ns_; }
  // After Session::unmount().
  void stop();

 private:
  void evict();
  void start_reader(const char* name, void (ControlFiles::*step)(std::chrono::milliseconds));
  // Starts the threads of a pool that has got a disk tier: one that spills, one that commits, those that
  // promote, and one that scrubs.
  void run_disk(const std::shared_ptr<Pool>& pool) EXCLUDES(mutex_);
  struct DiskThreads {
    std::shared_ptr<Pool> pool;
    std::vector<std::thread> threads;
  };
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
  uint64_t last_activity_ = 0;  // the evictor thread's own
  std::vector<std::thread> servers_;
  std::atomic<unsigned> serving_{0};
  std::vector<std::thread> threads_;
  Mutex mutex_;
  void end_disks_of_removed_pools() EXCLUDES(mutex_);
  // A disk tier is closed once, when all its threads have ended.
  static void end(std::vector<DiskThreads> disks);
  std::vector<DiskThreads> disks_ GUARDED_BY(mutex_);
  std::atomic<bool> disks_stopping_{false};
};

}  // namespace kvcachefs
