#include "tier/entries/candidates.h"

#include "base/check.h"
#include "base/clock.h"

namespace kvcachefs {

// One second is enough for a client between close and rename, and soon makes files that are written in place
// ordinary candidates.
constexpr uint64_t kFreshMs = 1000;

Candidates::Candidates(std::string_view policy) : policy_(make_policy(policy)), cold_(make_policy(policy)) {
  KVCACHEFS_CHECK(policy_ != nullptr);
}

Policy& Candidates::following(const Entry& entry) {
  Policy& its = of(entry);
  its.follow(&its == policy_.get() ? *cold_ : *policy_);
  return its;
}

void Candidates::fresh(Entry& entry) {
  MutexLock lock(mutex_);
  if (entry.stage != Entry::Stage::kFresh) ++fresh_entries_;
  entry.stage = Entry::Stage::kFresh;
  put_fresh(entry);
}

void Candidates::put_fresh(const Entry& entry) {
  const uint8_t owner = entry.policy.owner;
  if (owner >= fresh_.size()) fresh_.resize(owner + size_t{1});
  fresh_[owner].push_back({entry.policy.ino, now_coarse_ms()});
}

std::optional<uint64_t> Candidates::oldest_fresh(const Owners& of, uint64_t until_ms) {
  std::deque<Fresh>* oldest = nullptr;
  for (size_t owner = 0; owner < fresh_.size(); ++owner)
    if (of[owner] && !fresh_[owner].empty() &&
        (oldest == nullptr || fresh_[owner].front().since_ms < oldest->front().since_ms))
      oldest = &fresh_[owner];
  if (oldest == nullptr || oldest->front().since_ms > until_ms) return std::nullopt;
  const uint64_t ino = oldest->front().ino;
  oldest->pop_front();
  return ino;
}

void Candidates::publish(Entry& entry) {
  MutexLock lock(mutex_);
  if (entry.removed) return;
  if (entry.stage == Entry::Stage::kFresh) --fresh_entries_;
  entry.stage = Entry::Stage::kCandidate;
  if (entry.policy.in_heap()) return;
  Policy& its = following(entry);
  // A fresh entry may have been parked as a victim: it stays out of the heap, but its store counts from now.
  entry.parked ? its.stored(entry.policy) : its.inserted(entry.policy);
}

void Candidates::opened(Entry& entry) {
  MutexLock lock(mutex_);
  following(entry).opened(entry.policy);
}

void Candidates::reprioritised(Entry& entry, int priority) {
  MutexLock lock(mutex_);
  entry.policy.priority = priority;
  if (entry.policy.in_heap()) of(entry).reprioritised(entry.policy);
}

void Candidates::owned(Entry& entry, uint8_t owner) {
  MutexLock lock(mutex_);
  of(entry).owned(entry.policy, owner);
  if (entry.stage == Entry::Stage::kFresh && !entry.parked) put_fresh(entry);
}

void Candidates::park(Entry& entry) {
  MutexLock lock(mutex_);
  entry.parked = true;
  if (entry.policy.in_heap()) of(entry).removed(entry.policy);
}

void Candidates::unpark(Entry& entry) {
  MutexLock lock(mutex_);
  entry.parked = false;
  if (entry.removed) return;
  if (entry.stage == Entry::Stage::kCandidate && !entry.policy.in_heap()) of(entry).adopt(entry.policy);
  if (entry.stage == Entry::Stage::kFresh) put_fresh(entry);
}

void Candidates::removed(Entry& entry) {
  MutexLock lock(mutex_);
  if (entry.stage == Entry::Stage::kFresh) --fresh_entries_;
  // A stale number in fresh_ is harmless: its reader finds no such entry, or one that is not fresh.
  if (entry.policy.in_heap()) of(entry).removed(entry.policy);
}

void Candidates::moved(Entry& entry, Entry::Tier tier) {
  MutexLock lock(mutex_);
  if (entry.policy.in_heap()) of(entry).removed(entry.policy);
  entry.tier = tier;
  if (entry.stage == Entry::Stage::kCandidate && !entry.parked && !entry.removed)
    of(entry).adopt(entry.policy);
}

std::optional<uint64_t> Candidates::next_cold(const Owners& of) {
  MutexLock lock(mutex_);
  const PolicyFacts* victim = cold_->next_victim(of);
  if (victim == nullptr) return std::nullopt;
  return victim->ino;
}

std::optional<Candidates::Victim> Candidates::next_victim(bool even_fresh, const Owners& of) {
  MutexLock lock(mutex_);
  if (const PolicyFacts* victim = policy_->next_victim(of)) return Victim{victim->ino, false};
  if (!even_fresh) return std::nullopt;
  if (const auto ino = oldest_fresh(of, UINT64_MAX)) return Victim{*ino, true};
  return std::nullopt;
}

std::optional<uint64_t> Candidates::next_grown(uint64_t now_ms) {
  MutexLock lock(mutex_);
  return now_ms < kFreshMs ? std::nullopt : oldest_fresh(Owners().set(), now_ms - kFreshMs);
}

bool Candidates::has_fresh() const {
  MutexLock lock(mutex_);
  return fresh_entries_ > 0;
}

void Candidates::set_policy(std::string_view name) {
  MutexLock lock(mutex_);
  auto next = make_policy(name);
  KVCACHEFS_CHECK(next != nullptr);
  auto next_cold = make_policy(name);
  next->take_over(*policy_);
  next_cold->take_over(*cold_);
  policy_ = std::move(next);
  cold_ = std::move(next_cold);
}

}  // namespace kvcachefs
