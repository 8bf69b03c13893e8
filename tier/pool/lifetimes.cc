#include "tier/pool/lifetimes.h"

#include <fcntl.h>

#include <algorithm>

#include "base/clock.h"
#include "base/log_limit.h"

namespace kvcachefs {

Lifetimes::Times& Lifetimes::times_of(const sys::Handle& entry) {
  Times& times = times_[entry.ino];
  // Another file has got the number: what is known is of one that has gone.
  if (times.generation != entry.generation) {
    times.leases.clear();
    times.expires_ms = 0;
    times.generation = entry.generation;
  }
  return times;
}

void Lifetimes::put(Times& times, Lease lease) {
  const auto known = std::ranges::find(times.leases, lease.holder, &Lease::holder);
  if (known == times.leases.end())
    times.leases.push_back(lease);
  else
    known->until_ms = std::max(known->until_ms, lease.until_ms);
}

void Lifetimes::settle(uint64_t ino, const auto& ends) {
  const auto found = times_.find(ino);
  if (found == times_.end()) return;
  Times& times = found->second;
  const bool was_held = !times.leases.empty();
  std::erase_if(times.leases, ends);
  if (was_held && times.leases.empty()) let_go({ino, times.generation});
  uint64_t due_ms = times.expires_ms == 0 ? UINT64_MAX : times.expires_ms;
  for (const Lease& lease : times.leases) due_ms = std::min(due_ms, lease.until_ms);
  if (due_ms != times.due_ms) due_.erase({times.due_ms, ino});
  if (due_ms == UINT64_MAX) {
    times_.erase(found);
    return;
  }
  times.due_ms = due_ms;
  due_.emplace(due_ms, ino);
}

bool Lifetimes::hold(const sys::Handle& handle) {
  const uint64_t limit = capacity_.limit().pinned_max_bytes();
  const LockedEntry entry(entries_.shard(handle.ino), handle.ino);
  if (entry == nullptr || entry->generation != handle.generation || !entry->is_stored()) return false;
  if (!entry->leased) {
    auto file = arena_.open(handle, O_PATH | O_NOFOLLOW);
    const auto attributes = file ? sys::stat_of(file->get()) : pass(file);
    if (!attributes || !entries_.pinned(*entry, bytes_of(*attributes).whole, limit, Entries::Pin::kLease))
      return false;
  }
  DiskTier* const tier = disk_.tier();
  if (tier != nullptr && entry->tier == Entry::Tier::kCold)
    (void)tier->promoter.request(handle.ino, Promoter::kOpenPriority - 1);
  return true;
}

void Lifetimes::let_go(const sys::Handle& handle) {
  const LockedEntry entry(entries_.shard(handle.ino), handle.ino);
  if (entry != nullptr && entry->generation == handle.generation && entry->leased)
    entries_.unpinned(*entry, Entries::Pin::kLease);
}

bool Lifetimes::lease(const sys::Handle& entry, uint64_t until_ms, Holder holder) {
  MutexLock lock(mutex_);
  if (const auto its = held_.find(holder);
      its != held_.end() && its->second.size() >= kMostLeases && !its->second.contains(entry.ino))
    return false;
  if (!hold(entry)) return false;
  Times& times = times_of(entry);
  if (holder != kNobody && std::ranges::find(times.leases, holder, &Lease::holder) == times.leases.end())
    held_[holder].insert(entry.ino);
  put(times, {holder, until_ms});
  settle(entry.ino, [](const Lease&) { return false; });
  return true;
}

void Lifetimes::end_leases(Holder holder) {
  MutexLock lock(mutex_);
  const auto its = held_.extract(holder);
  if (its.empty()) return;
  for (const uint64_t ino : its.mapped())
    settle(ino, [holder](const Lease& lease) { return lease.holder == holder; });
}

void Lifetimes::describe(const sys::Handle& entry, uint64_t kept_until_ms, uint64_t expires_ms) {
  MutexLock lock(mutex_);
  if (kept_until_ms == 0 && expires_ms == 0 && !times_.contains(entry.ino)) return;
  Times& times = times_of(entry);
  times.expires_ms = expires_ms;
  const auto own = std::ranges::find(times.leases, kItself, &Lease::holder);
  if (own != times.leases.end()) own->until_ms = 0;
  const bool is_to_be_kept = kept_until_ms > now_coarse_ms();
  if (is_to_be_kept && hold(entry)) {
    put(times, {kItself, kept_until_ms});
  } else if (is_to_be_kept) {
    static LogLimit log_limit;
    log_limit.warning("pool {}: inode {} is not kept for its user.kv.ttl: pinned_max has no room for it",
                      name_, entry.ino);
  }
  settle(entry.ino, [](const Lease& lease) { return lease.until_ms == 0; });
}

void Lifetimes::step(uint64_t now_ms) {
  MutexLock lock(mutex_);
  while (!due_.empty() && due_.begin()->first <= now_ms) {
    const uint64_t ino = due_.begin()->second;
    Times& times = times_.at(ino);
    const bool expires = times.expires_ms != 0 && times.expires_ms <= now_ms;
    if (expires) {
      times.expires_ms = 0;
      expired_.push_back({ino, times.generation});
    }
    // Who says of an entry both when it ends and that it is kept longer means the end.
    settle(ino, [now_ms, expires](const Lease& lease) {
      return lease.until_ms <= now_ms || (expires && lease.holder == kItself);
    });
  }
}

std::optional<sys::Handle> Lifetimes::next_expired() {
  MutexLock lock(mutex_);
  if (expired_.empty()) return std::nullopt;
  const sys::Handle entry = expired_.back();
  expired_.pop_back();
  return entry;
}

size_t Lifetimes::entries() const {
  MutexLock lock(mutex_);
  return times_.size();
}

void Lifetimes::not_yet(const sys::Handle& entry, uint64_t again_ms) {
  MutexLock lock(mutex_);
  Times& times = times_of(entry);
  if (times.expires_ms == 0) times.expires_ms = again_ms;
  settle(entry.ino, [](const Lease&) { return false; });
}

}  // namespace kvcachefs
