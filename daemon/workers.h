// The daemon's threads: the only file that starts any (libfuse's own, one a processor, aside when it serves
// over io_uring). Main thread. A thread that cannot be started ends the process: there is nothing to serve
// with.
#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "fs/session.h"
#include "tier/pools.h"

namespace kvcachefs {

class Workers {
 public:
  Workers(Session& session, Pools& pools, Wakeup& evictor_wakeup)
      : session_(session), pools_(pools), evictor_wakeup_(evictor_wakeup) {}
  ~Workers() { stop(); }
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Two on the smallest machine, so that one long request does not hold up all others; more than 16 only
  // contend for the one queue of the device.
  static unsigned default_server_threads();

  void start(unsigned server_threads);
  // After the session has ended.
  void stop();

 private:
  void evict();

  Session& session_;
  Pools& pools_;
  Wakeup& evictor_wakeup_;
  std::atomic<bool> stopping_{false};
  uint64_t last_activity_ = 0;  // the evictor thread's own
  std::vector<std::thread> threads_;
};

}  // namespace kvcachefs
