// What comes back of the pools' disks while they are served, and how they end.
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "base/log.h"
#include "daemon/workers.h"

namespace kvcachefs {
namespace {

constexpr auto kLookAgain = std::chrono::milliseconds(100);
// The limit keeps a stop within systemd's patience of 90 s.
constexpr uint64_t kFinishNs = 60'000'000'000;
constexpr auto kFinishPause = std::chrono::milliseconds(5);

}  // namespace

Workers::DiskThreads& Workers::threads_of(const std::shared_ptr<Pool>& pool) {
  const auto found = std::ranges::find(disks_, pool, &DiskThreads::pool);
  if (found != disks_.end()) return *found;
  DiskThreads& disk = disks_.emplace_back();
  disk.pool = pool;
  return disk;
}

void Workers::end(std::vector<DiskThreads> disks) {
  for (DiskThreads& disk : disks) {
    DiskTier& tier = *disk.pool->disk().owned();
    for (auto& thread : disk.threads) {
      tier.wake();
      thread.join();
    }
    tier.close();
  }
}

void Workers::end_reading(const Pool& pool) {
  std::vector<DiskThreads> ended;
  {
    MutexLock lock(mutex_);
    const auto its = [&](const DiskThreads& disk) { return disk.pool.get() == &pool; };
    const auto found = std::ranges::find_if(disks_, its);
    ended.push_back(std::move(*found));
    disks_.erase(found);
  }
  end(std::move(ended));
}

void Workers::came_to(Restore& its, Restore::State state, Result<void> outcome) {
  {
    MutexLock lock(mutex_);
    its.state = state;
    its.outcome = std::move(outcome);
    if (state == Restore::State::kEnded) its.pool = nullptr;  // which may be removed from now on
  }
  restored_.notify_all();
}

void Workers::restore(Restore& its) {
  auto restored = its.pool->recovery().bring_back([&] {
    {
      MutexLock lock(mutex_);
      run_promoters(threads_of(its.pool));
    }
    came_to(its, Restore::State::kInUse);
    // A takeover hurries only up to here.
    if (getpriority(PRIO_PROCESS, 0) < 0) (void)setpriority(PRIO_PROCESS, 0, 0);
  });
  if (!restored && restored.error().code != ECANCELED) log_error("{}", restored.error().message);
  {
    MutexLock lock(mutex_);
    if (its.pool->disk().tier() == nullptr)
      std::erase_if(disks_, [&](const DiskThreads& disk) { return disk.pool == its.pool; });
    else if (restored || restored.error().code != ECANCELED)
      run_others(threads_of(its.pool));
  }
  came_to(its, Restore::State::kEnded, std::move(restored));
}

void Workers::give_up(Pool& pool) {
  log_info("pool {}: stopped before all of its entries were back; the next start brings them back",
           pool.name());
  pool.recovery().give_up();
}

// Nothing is lost with a restore that is given up if the catalog has all that clients could have changed.
void Workers::end_restores(uint64_t deadline_ns) {
  std::list<Restore> ending;
  {
    MutexLock lock(mutex_);
    for (const Restore& its : restores_) {
      if (its.state == Restore::State::kEnded) continue;
      const DiskTier* const tier = its.pool->disk().tier();
      const bool has_all = its.pool->disk().durability() == Durability::kNone ||
                           its.pool->insight().spill_usage().dirty_entries == 0;
      if (tier == nullptr || (has_all && tier->store->log().idle() && tier->spiller.idle()))
        give_up(*its.pool);
    }
    ending.splice(ending.end(), restores_);
    for (const Restore& its : ending) {
      while (its.state != Restore::State::kEnded && now_ns() < deadline_ns)
        restored_.wait_for(mutex_, kLookAgain);
      if (its.state != Restore::State::kEnded) give_up(*its.pool);
    }
  }
  for (Restore& its : ending) its.thread.join();
}

// No request comes any more: dirty content that is closed is written to the disk while the disk tier's
// threads still run.
void Workers::finish_disks() {
  const uint64_t deadline_ns = now_ns() + kFinishNs;
  end_restores(deadline_ns);
  for (const auto& pool : pools_.list()) {
    if (pool->disk().away() != nullptr) {
      log_warning("pool {}: its disk is away: {} dirty entries are lost", pool->name(),
                  pool->insight().spill_usage().dirty_entries);
      pool->disk().away()->close();
    }
    DiskTier* const tier = pool->disk().tier();
    if (tier == nullptr) continue;
    pool->disk_requests().spill_all();
    while (now_ns() < deadline_ns && !(tier->spiller.idle() && tier->store->log().idle()))
      std::this_thread::sleep_for(kFinishPause);
    if (!tier->spiller.idle() || !tier->store->log().idle())
      log_warning("pool {}: stopped before all dirty entries were on the disk", pool->name());
  }
  disks_stopping_ = true;
  std::vector<DiskThreads> disks;
  {
    MutexLock lock(mutex_);
    disks.swap(disks_);
  }
  end(std::move(disks));
}

}  // namespace kvcachefs
