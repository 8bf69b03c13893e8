#include "tier/disk/promoter.h"

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace kvcachefs {

bool Promoter::request(uint64_t ino, int priority, PromoteWaiter waiter, uint64_t patience_ends_ms) {
  {
    MutexLock lock(mutex_);
    if (!closed_) return queue(ino, priority, {std::move(waiter), patience_ends_ms});
  }
  if (waiter) waiter(kEnding);
  return true;
}

void Promoter::order(std::vector<Order> orders, std::span<const uint64_t> found) {
  std::vector<std::pair<PromoteWaiter, PromoteOutcome>> refused;
  {
    MutexLock lock(mutex_);
    for (Order& each : orders) {
      const bool has_place = pending_.size() < most_queued_ || pending_.contains(each.ino);
      if (!closed_ && has_place)
        (void)queue(each.ino, each.priority, {std::move(each.waiter), 0}, true);
      else
        refused.emplace_back(std::move(each.waiter), closed_ ? kEnding : kNoMemory);
    }
    if (ordered_pending_ > 0) ordered_.insert(found.begin(), found.end());
  }
  for (auto& [waiter, outcome] : refused) waiter(outcome);
}

bool Promoter::is_ordered(uint64_t ino) const {
  if (ordered_pending_ == 0) return false;
  MutexLock lock(mutex_);
  return ordered_.contains(ino);
}

bool Promoter::queue(uint64_t ino, int priority, Pending::Waiting waiting, bool ordered) {
  auto found = pending_.find(ino);
  if (found == pending_.end() && priority < kOpenPriority && pending_.size() >= most_queued_) return false;
  Pending& pending = pending_[ino];
  if (waiting.waiter) pending.waiters.push_back(std::move(waiting));
  if (ordered) ordered_.insert(ino);
  if (ordered && !std::exchange(pending.ordered, true)) ++ordered_pending_;
  const bool raised = found == pending_.end() || (!pending.started && priority > pending.priority);
  if (raised) {
    // next() passes over the place that the request had in a lower queue.
    pending.priority = priority;
    queue_[priority].push_back(ino);
  } else if (pending.started) {
    pending.priority = std::max(pending.priority, priority);
    joins_.fetch_add(1, std::memory_order_release);
  }
  wake_one();
  return true;
}

void Promoter::read(CatalogContent content, uint64_t offset, size_t size, ReadWaiter waiter) {
  {
    MutexLock lock(mutex_);
    if (!closed_) {
      reads_.push_back({std::move(content), offset, size, std::move(waiter)});
      return wake_one();
    }
  }
  waiter(fail(ESHUTDOWN));
}

std::optional<Promoter::Next> Promoter::next(int lowest_priority) {
  MutexLock lock(mutex_);
  while (!queue_.empty() && queue_.begin()->first >= lowest_priority) {
    auto first = queue_.begin();
    if (first->second.empty()) {
      queue_.erase(first);
      continue;
    }
    const uint64_t ino = first->second.front();
    first->second.pop_front();
    auto found = pending_.find(ino);
    if (found == pending_.end() || found->second.started || found->second.priority != first->first) continue;
    found->second.started = true;
    found->second.place = {-int64_t{first->first}, ++starts_};
    return Next{ino, first->first, found->second.ordered};
  }
  return std::nullopt;
}

std::optional<Promoter::Read> Promoter::next_read() {
  MutexLock lock(mutex_);
  if (reads_.empty()) return std::nullopt;
  Read read = std::move(reads_.front());
  reads_.pop_front();
  return read;
}

int Promoter::priority_of(uint64_t ino) const {
  MutexLock lock(mutex_);
  auto found = pending_.find(ino);
  return found != pending_.end() ? found->second.priority : INT32_MIN;
}

Promoter::Patience Promoter::patience_of(uint64_t ino) const {
  MutexLock lock(mutex_);
  Patience patience;
  auto found = pending_.find(ino);
  if (found == pending_.end()) return patience;
  for (const Pending::Waiting& waiting : found->second.waiters) {
    if (waiting.patience_ends_ms == 0) continue;
    patience.first_ends_ms = std::min(patience.first_ends_ms, waiting.patience_ends_ms);
    patience.last_ends_ms = std::max(patience.last_ends_ms, waiting.patience_ends_ms);
  }
  return patience;
}

bool Promoter::give_up(uint64_t ino, uint64_t now_ms) {
  std::vector<PromoteWaiter> waiters;
  bool waited_for = false;
  {
    MutexLock lock(mutex_);
    auto found = pending_.find(ino);
    if (found == pending_.end()) return false;
    std::erase_if(found->second.waiters, [&](Pending::Waiting& waiting) {
      const bool over = waiting.patience_ends_ms != 0 && waiting.patience_ends_ms < now_ms;
      if (over) waiters.push_back(std::move(waiting.waiter));
      return over;
    });
    waited_for = !found->second.waiters.empty();
  }
  for (PromoteWaiter& waiter : waiters) waiter(kNoMemory);
  return waited_for;
}

Promoter::PendingMap::iterator Promoter::forget(PendingMap::iterator pending) {
  lacks_no_memory(pending->second);
  if (pending->second.ordered) {
    if (ordered_pending_ == 1) {
      ++orders_ended_;
      ordered_.clear();
    }
    --ordered_pending_;
  }
  return pending_.erase(pending);
}

void Promoter::lacks_no_memory(Pending& pending) {
  if (std::exchange(pending.lacks_memory, false)) lacking_.erase(pending.place);
}

Promoter::Turn Promoter::turn_of(uint64_t ino) const {
  MutexLock lock(mutex_);
  auto found = pending_.find(ino);
  if (found == pending_.end()) return Turn::kTake;
  if (found->second.dropped) return Turn::kDropped;
  return !lacking_.empty() && *lacking_.begin() < found->second.place ? Turn::kWait : Turn::kTake;
}

void Promoter::lacks_memory(uint64_t ino) {
  MutexLock lock(mutex_);
  auto found = pending_.find(ino);
  if (found == pending_.end() || std::exchange(found->second.lacks_memory, true)) return;
  lacking_.insert(found->second.place);
}

void Promoter::has_memory(uint64_t ino) {
  MutexLock lock(mutex_);
  if (auto found = pending_.find(ino); found != pending_.end()) lacks_no_memory(found->second);
}

void Promoter::drop_behind(uint64_t ino) {
  std::vector<Pending::Waiting> waiters;
  {
    MutexLock lock(mutex_);
    auto first = pending_.find(ino);
    if (first == pending_.end()) return;
    const Place place = first->second.place;
    for (auto each = pending_.begin(); each != pending_.end();) {
      Pending& pending = each->second;
      const bool behind = pending.started ? place < pending.place : place.first <= -int64_t{pending.priority};
      const bool drops = behind && pending.ordered && pending.priority < kOpenPriority;
      if (drops && pending.started) pending.dropped = true;
      if (!drops || pending.started) {
        ++each;
        continue;
      }
      std::ranges::move(pending.waiters, std::back_inserter(waiters));
      each = forget(each);
    }
  }
  for (Pending::Waiting& waiting : waiters) waiting.waiter(kNoMemory);
}

void Promoter::done(uint64_t ino, const PromoteOutcome& outcome, int priority) {
  std::vector<Pending::Waiting> waiters;
  {
    MutexLock lock(mutex_);
    auto found = pending_.find(ino);
    if (found == pending_.end()) return;
    Pending& pending = found->second;
    if (outcome.lacks_memory() && pending.priority > priority) {
      pending.started = pending.dropped = false;
      lacks_no_memory(pending);
      queue_[pending.priority].push_back(ino);
      return wake_one();
    }
    waiters = std::move(pending.waiters);
    (void)forget(found);
  }
  for (Pending::Waiting& waiting : waiters) waiting.waiter(outcome);
}

void Promoter::wake_one() {
  if (lanes_.empty()) return;
  lanes_[next_lane_++ % lanes_.size()]->wake();
}

void Promoter::add(PromoterLane& lane) {
  MutexLock lock(mutex_);
  lanes_.push_back(&lane);
}

void Promoter::wake() {
  MutexLock lock(mutex_);
  for (PromoterLane* lane : lanes_) lane->wake();
}

size_t Promoter::queued() const {
  MutexLock lock(mutex_);
  return pending_.size();
}

void Promoter::close() {
  PendingMap pending;
  std::deque<Read> reads;
  {
    MutexLock lock(mutex_);
    closed_ = true;
    lanes_.clear();
    pending.swap(pending_);
    reads.swap(reads_);
    queue_.clear();
    ordered_.clear();
    ordered_pending_ = 0;
    lacking_.clear();
  }
  for (auto& [ino, left] : pending)
    for (Pending::Waiting& waiting : left.waiters) waiting.waiter(kEnding);
  for (Read& read : reads) read.waiter(fail(ESHUTDOWN));
}

}  // namespace kvcachefs
