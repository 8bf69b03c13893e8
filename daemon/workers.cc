#include "daemon/workers.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>

namespace kvcachefs {
namespace {

// Clients wait for what these two do.
constexpr int kHelperNice = -10;

constexpr auto kWritingPause = std::chrono::milliseconds(1);
constexpr auto kIdlePause = std::chrono::milliseconds(100);
constexpr auto kLullPause = std::chrono::milliseconds(10);
// Writers that keep their files open without writing must not cost a processor a thousand wake-ups a second.
constexpr int kQuietRounds = 256;
// After the last writer's close the next create is often a moment away.
constexpr int kLingerRounds = 64;

void become_helper(const char* name) {
  pthread_setname_np(pthread_self(), name);
  // Linux gives each thread its own nice value (setpriority(2)); without the right to it, things are only
  // slower.
  (void)setpriority(PRIO_PROCESS, 0, kHelperNice);
}

}  // namespace

unsigned Workers::default_server_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 2u, 16u);
}

void Workers::start(unsigned server_threads) {
  // Signals are the main thread's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (unsigned i = 0; i < server_threads; ++i)
    threads_.emplace_back([this] {
      pthread_setname_np(pthread_self(), "server");
      session_.serve();
    });
  threads_.emplace_back([this] {
    become_helper("invalidator");
    session_.notify();
  });
  threads_.emplace_back([this] {
    become_helper("evictor");
    evict();
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Workers::evict() {
  int quiet_rounds = 0;
  int idle_rounds = 0;
  while (!stopping_) {
    bool busy = false;
    uint64_t activity = 0;
    for (const auto& pool : pools_.list()) {
      busy |= pool->tidy();
      activity += pool->activity();
    }
    pools_.reap();
    quiet_rounds = activity == last_activity_ ? quiet_rounds + 1 : 0;
    last_activity_ = activity;
    idle_rounds = busy ? 0 : idle_rounds + 1;
    if (idle_rounds > kLingerRounds)
      evictor_wakeup_.wait(kIdlePause);
    else
      evictor_wakeup_.wait(quiet_rounds < kQuietRounds ? kWritingPause : kLullPause);
  }
}

void Workers::stop() {
  stopping_ = true;
  session_.stop_notifying();
  evictor_wakeup_.wake();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace kvcachefs
