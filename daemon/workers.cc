#include "daemon/workers.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <iterator>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys_process.h"
#include "daemon/stacks.h"

namespace kvcachefs {
namespace {

// Clients wait for the work of these threads, the invalidators and the evictor.
constexpr int kHelperNice = -10;
// A notification waits while a client's call holds the directory. With this many threads, notifications of
// other pools go on until as many pools have such a directory.
constexpr int kInvalidators = 8;
constexpr int kBackgroundNice = 10;  // for work that no client waits for
// Reads of clients come before the spiller: on two cores they keep 0.75 of their speed beside a spiller at
// 5.5 GB/s, and 0.6 without this value. The value is no higher, because an fsync may wait for the spiller.
constexpr int kSpillerNice = 5;

constexpr auto kWritingPause = std::chrono::milliseconds(1);
constexpr auto kIdlePause = std::chrono::milliseconds(100);
constexpr auto kLullPause = std::chrono::milliseconds(10);
// A pause of 1 ms would cost a processor a thousand wake-ups a second for writers that only keep their files
// open.
constexpr int kQuietRounds = 256;
// A thread of a pool's lane is kept for the next request for this long; starting one costs 50 us.
constexpr auto kHelperPause = std::chrono::milliseconds(1000);
constexpr auto kReadPause = std::chrono::milliseconds(100);
constexpr auto kSurveyPause = std::chrono::milliseconds(50);
constexpr auto kWatchPause = std::chrono::milliseconds(50);
constexpr auto kDiskPause = std::chrono::milliseconds(100);
// A takeover looks at a pool's files on half of the processors, because servers run meanwhile.
constexpr unsigned kMostWalkers = 8;
constexpr auto kRestorePause = std::chrono::milliseconds(1000);
// The signal ends a server thread's wait for a request. Usually the kernel ends that wait. It does not if the
// mount is still in another mount namespace: a container's mount keeps the connection alive, and must not
// keep the daemon from ending.
constexpr int kEndSignal = SIGUSR1;
constexpr uint64_t kEndPatienceNs = 1'000'000'000;
constexpr auto kEndPause = std::chrono::milliseconds(5);
constexpr uint64_t kNotDue = UINT64_MAX;
// The create after the last writer's close often comes a moment later, so the evictor stays at the short
// pause for some rounds.
constexpr int kLingerRounds = 64;

void become_helper(const char* name) {
  pthread_setname_np(pthread_self(), name);
  // Linux gives each thread its own nice value (setpriority(2)). A daemon without the right to set it is only
  // slower.
  (void)setpriority(PRIO_PROCESS, 0, kHelperNice);
}

// The main thread takes the signals. Threads that start while an OthersSignals lives block all but those that
// a thread causes itself: a blocked fault ends the process before it can be noted why (base/risky_read.h).
class OthersSignals {
 public:
  OthersSignals() {
    sigset_t set;
    sigfillset(&set);
    for (const int own : {kStackSignal, SIGSEGV, SIGBUS, SIGFPE}) sigdelset(&set, own);
    pthread_sigmask(SIG_SETMASK, &set, &before_);
  }
  ~OthersSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  OthersSignals(const OthersSignals&) = delete;
  OthersSignals& operator=(const OthersSignals&) = delete;

 private:
  sigset_t before_;
};

}  // namespace

unsigned Workers::default_server_threads() {
  return std::clamp(std::thread::hardware_concurrency(), 8u, 16u);
}

void Workers::on_several_threads(const std::function<void()>& work) {
  const unsigned threads = std::clamp(std::thread::hardware_concurrency() / 2, 1u, kMostWalkers);
  std::vector<std::thread> others;
  {
    const OthersSignals signals;
    try {
      while (others.size() + 1 < threads)
        others.emplace_back([&work] {
          pthread_setname_np(pthread_self(), "walker");
          work();
        });
    } catch (const std::system_error& error) {
      log_warning("{} threads instead of {}: {}", others.size() + 1, threads, error.what());
    }
  }
  work();
  for (std::thread& other : others) other.join();
}

template <class Serve>
void Workers::start_server(Serve serve) {
  ++serving_;
  servers_.emplace_back([this, serve] {
    pthread_setname_np(pthread_self(), "server");
    const sigset_t wakes_it = sys::signal_set({kEndSignal});
    pthread_sigmask(SIG_UNBLOCK, &wakes_it, nullptr);
    serve();
    --serving_;
  });
}

void Workers::start_servers(unsigned server_threads) {
  struct sigaction wakes {};
  wakes.sa_handler = [](int) {};
  (void)sigaction(kEndSignal, &wakes, nullptr);
  session_.help_with([this](const auto& pool, WaitingLane& lane) { return start_helper(pool, lane); });
  const OthersSignals others;
  for (unsigned i = 0; i < server_threads; ++i) start_server([this] { session_.serve(); });
}

void Workers::start(unsigned server_threads) {
  const OthersSignals others;
  for (unsigned i = 0; i < server_threads; ++i) start_server([this] { session_.serve_what_was_put_aside(); });
  for (int i = 0; i < kInvalidators; ++i)
    threads_.emplace_back([this] {
      become_helper("invalidator");
      session_.notify();
    });
  const auto repeat = [this](const char* name, auto round, int its_nice = 0) {
    threads_.emplace_back([this, name, round, its_nice] {
      pthread_setname_np(pthread_self(), name);
      if (its_nice > 0) (void)setpriority(PRIO_PROCESS, 0, its_nice);
      while (!stopping_) round();
    });
  };
  const auto each_pool = [this](auto act) {
    for (const auto& pool : pools_.list()) act(*pool);
    std::this_thread::sleep_for(kSurveyPause);
  };
  for (int i = 0; i < ControlReads::kWorkers; ++i)
    repeat("gatherer", [this] { session_.control().gather(kReadPause); });
  repeat(
      "log reader", [this] { session_.control().answer_log_reads(kReadPause); }, kBackgroundNice);
  repeat("surveyor", [=] {
    each_pool([](Pool& pool) {
      pool.insight().numa_survey().step();
      if (DiskTier* const tier = pool.disk().tier()) tier->store->log().tell_of_hang(now_coarse_ms());
    });
  });
  repeat("indexer", [this] {
    // Pools take turns, so that one with many changes does not keep the others' waiting.
    for (bool is_more = true; std::exchange(is_more, false) && !stopping_;)
      for (const auto& pool : pools_.list()) is_more |= pool->insight().step_index();
    std::this_thread::sleep_for(kSurveyPause);
  });
  threads_.emplace_back([this] {
    become_helper("evictor");
    evict();
  });
  pools_.on_disk_tier([this](const std::shared_ptr<Pool>& pool) { run_disk(pool); });
  fault_point("requests are taken");
}

bool Workers::start_helper(const std::shared_ptr<Pool>& pool, WaitingLane& lane) {
  MutexLock lock(mutex_);
  Passing& helper = helpers_.emplace_back();
  try {
    helper.thread = std::thread([&helper, &lane, pool] {
      pthread_setname_np(pthread_self(), "pool helper");
      while (lane.step(kHelperPause)) continue;
      helper.done = true;
    });
  } catch (const std::system_error&) {
    helpers_.pop_back();
    return false;
  }
  return true;
}

void Workers::do_behind(WaitingLane::Job job) {
  const auto pools = pools_.list();
  if (pools.empty()) return job();
  WaitingLane& lane = pools.front()->settings().orders();
  if (!lane.hand_over(job, [&] { return start_helper(pools.front(), lane); })) job();
}

void Workers::join_ended_helpers() {
  MutexLock lock(mutex_);
  std::erase_if(helpers_, [](Passing& helper) {
    if (helper.done) helper.thread.join();
    return !helper.thread.joinable();
  });
}

// No request is handed over any more. The requests that still wait are carried out without waiting for room.
void Workers::end_helpers() {
  for (const auto& pool : pools_.all()) {
    pool->capacity().waiting().end();
    pool->names_to_come().lane().end();
    pool->settings().orders().end();
    pool->settings().records().end();
  }
  std::list<Passing> helpers;
  {
    MutexLock lock(mutex_);
    helpers.swap(helpers_);
  }
  for (Passing& helper : helpers) helper.thread.join();
}

void Workers::watch(AwayDisks& disks) {
  if (!disks.step()) return;
  away_disks_ = &disks;
  const OthersSignals others;
  threads_.emplace_back([this, &disks] {
    pthread_setname_np(pthread_self(), "disk watcher");
    while (!stopping_ && disks.step()) std::this_thread::sleep_for(kWatchPause);
  });
}

void Workers::watch(MemoryWatch& memory) {
  const OthersSignals others;
  threads_.emplace_back([this, &memory] {
    become_helper("memory watcher");
    while (!stopping_) std::this_thread::sleep_for(memory.step());
  });
}

template <class Step>
void Workers::run_thread(const char* name, int nice, DiskThreads& disk, Step step) {
  disk.threads.emplace_back([this, name, nice, pool = disk.pool, step] {
    pthread_setname_np(pthread_self(), name);
    (void)setpriority(PRIO_PROCESS, 0, nice);
    pool->disk_requests().run_near_disk();
    while (!disks_stopping_ && !pool->retired() && !pool->disk().before_use().is_withdrawn())
      step(kDiskPause);
  });
}

void Workers::run_promoters(DiskThreads& disk) {
  if (!disk.threads.empty()) return;  // since before the disk tier was in use
  for (const auto& lane : disk.pool->disk().owned()->lanes)
    run_thread("promoter", 0, disk, [&lane](auto at_most) { lane->step(at_most); });
}

void Workers::run_others(DiskThreads& disk) {
  DiskTier* const tier = disk.pool->disk().tier();
  run_thread("spiller", kSpillerNice, disk, [tier](auto at_most) { tier->spiller.step(at_most); });
  run_thread("committer", 0, disk, [tier](auto at_most) { tier->store->log().step(at_most); });
  run_thread("scrubber", kBackgroundNice, disk, [tier](auto at_most) { tier->scrubber.step(at_most); });
}

void Workers::run_disk(const std::shared_ptr<Pool>& pool) {
  const OthersSignals others;
  MutexLock lock(mutex_);
  DiskThreads& disk = threads_of(pool);
  if (std::exchange(disk.is_whole, true)) return;
  run_promoters(disk);
  run_others(disk);
}

void Workers::read_before_use(const std::shared_ptr<Pool>& pool) {
  const OthersSignals others;
  {
    MutexLock lock(mutex_);
    run_promoters(threads_of(pool));
  }
  pool->recovery().disk().before_use().readable(*pool->disk().owned(),
                                                [this, its = pool.get()] { end_reading(*its); });
}

Result<void> Workers::restore_disks(std::chrono::milliseconds patience) {
  const OthersSignals others;
  MutexLock lock(mutex_);
  for (const auto& pool : pools_.all()) {
    if (!pool->recovery().brings_back()) continue;
    threads_of(pool).is_whole = true;
    Restore& its = restores_.emplace_back();
    its.pool = pool;
    its.thread = std::thread([this, &its] {
      pthread_setname_np(pthread_self(), "restorer");
      restore(its);
    });
  }
  const auto all_are = [this](Restore::State state) REQUIRES(mutex_) {
    return std::ranges::all_of(restores_, [state](const Restore& its) { return its.state >= state; });
  };
  while (!all_are(Restore::State::kInUse)) restored_.wait_for(mutex_, kRestorePause);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (!all_are(Restore::State::kEnded)) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) break;
    restored_.wait_for(mutex_, left);
  }
  for (const Restore& its : restores_)
    if (!its.outcome) return fail(its.outcome.error().code, its.outcome.error().message);
  return {};
}

void Workers::end_disks_of_removed_pools() {
  std::vector<DiskThreads> ended;
  {
    MutexLock lock(mutex_);
    auto kept = std::ranges::partition(disks_, [](const auto& disk) { return !disk.pool->retired(); });
    std::move(kept.begin(), kept.end(), std::back_inserter(ended));
    disks_.erase(kept.begin(), kept.end());
  }
  // On threads of their own, because a disk that stands still would stop the eviction from all pools.
  for (DiskThreads& disk : ended) {
    Passing& ender = enders_.emplace_back();
    ender.thread = std::thread([&ender, disk = std::move(disk)]() mutable {
      become_helper("disk ender");
      std::vector<DiskThreads> disks;
      disks.push_back(std::move(disk));
      end(std::move(disks));
      ender.done = true;
    });
  }
  std::erase_if(enders_, [](Passing& ender) {
    if (ender.done) ender.thread.join();
    return !ender.thread.joinable();
  });
}

void Workers::end_servers() {
  const uint64_t patience_ends_ns = now_ns() + kEndPatienceNs;
  while (serving_ > 0) {
    std::this_thread::sleep_for(kEndPause);
    if (now_ns() < patience_ends_ns) continue;
    for (std::thread& server : servers_) (void)pthread_kill(server.native_handle(), kEndSignal);
  }
  for (std::thread& server : servers_) server.join();
  servers_.clear();
}

void Workers::evict() {
  int quiet_rounds = 0;
  int idle_rounds = 0;
  while (!stopping_) {
    fault_point("evictor turn");
    bool busy = false;
    uint64_t activity = 0;
    for (const auto& pool : pools_.list()) {
      busy |= pool->evictor().tidy();
      pool->open_files().end_lost_writers();
      activity += pool->capacity().activity();
    }
    // The turn counts as not due during this, because freeing a removed pool's memory takes as long as the
    // kernel takes.
    last_turn_ns_ = kNotDue;
    end_disks_of_removed_pools();
    join_ended_helpers();
    pools_.reap();
    last_turn_ns_ = now_ns();
    quiet_rounds = activity == last_activity_ ? quiet_rounds + 1 : 0;
    last_activity_ = activity;
    idle_rounds = busy ? 0 : idle_rounds + 1;
    evictor_wakeup_.wait(idle_rounds > kLingerRounds   ? kIdlePause
                         : quiet_rounds < kQuietRounds ? kWritingPause
                                                       : kLullPause);
  }
}

void Workers::stop() {
  if (threads_.empty()) return finish_disks();  // of a start that has failed
  pools_.on_disk_tier({});
  for (const auto& pool : pools_.all()) pool->capacity().waiting().end_waits();
  end_servers();
  end_helpers();
  finish_disks();
  stopping_ = true;
  for (const auto& pool : pools_.all()) pool->insight().numa_survey().end();
  session_.stop_notifying();
  session_.control().end_reads();
  evictor_wakeup_.wake();
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  for (Passing& ender : enders_) ender.thread.join();
  enders_.clear();
}

}  // namespace kvcachefs
