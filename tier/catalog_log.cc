#include "tier/catalog_log.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"

namespace kvcachefs {
namespace {

// A transaction costs a few milliseconds of the disk's time however much it holds; nobody waits for these.
constexpr auto kGatheringTime = std::chrono::milliseconds(5);
constexpr auto kRetryPause = std::chrono::milliseconds(500);
// What one transaction takes at most, so that who waits for its first change does not wait for a whole flood.
constexpr size_t kBatchChanges = 8192;
// Those of a catalog that cannot be written: 300 MB of memory at the most.
constexpr size_t kPendingChanges = 1'000'000;

}  // namespace

void CatalogLog::append(std::vector<CatalogChange> changes) {
  if (changes.empty()) return;
  bool worth_a_step = false;
  {
    MutexLock lock(mutex_);
    if (frozen() || closed_) return;
    // The first ends the wait for something to do, the last of a batch the wait for more.
    worth_a_step = changes_.empty() || changes_.size() + changes.size() >= kBatchChanges;
    appended_ += changes.size();
    ends_.push_back(appended_);
    std::move(changes.begin(), changes.end(), std::back_inserter(changes_));
  }
  if (worth_a_step) condition_.notify_one();
}

void CatalogLog::when_committed(Waiter waiter) {
  {
    MutexLock lock(mutex_);
    if (!closed_) waiting_.push_back({appended_, std::exchange(waiter, {})});
  }
  if (waiter) return waiter(fail(ESHUTDOWN));
  condition_.notify_one();
}

void CatalogLog::wake() {
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  condition_.notify_all();
}

bool CatalogLog::idle() const {
  MutexLock lock(mutex_);
  return changes_.empty() && waiting_.empty() && committed_ == appended_;
}

void CatalogLog::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  step(std::chrono::milliseconds(0));  // what the last names' going has left
  answer(0, fail(ESHUTDOWN));
}

void CatalogLog::gather() {
  const auto deadline = std::chrono::steady_clock::now() + kGatheringTime;
  while (!changes_.empty() && changes_.size() < kBatchChanges && waiting_.empty() && !woken_) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= std::chrono::milliseconds(0)) return;
    condition_.wait_for(mutex_, std::chrono::ceil<std::chrono::milliseconds>(left));
  }
}

void CatalogLog::step(std::chrono::milliseconds at_most) {
  uint64_t committed = 0;
  {
    MutexLock lock(mutex_);
    if (changes_.empty() && batch_.empty() && waiting_.empty() && !woken_)
      condition_.wait_for(mutex_, at_most);
    if (failing_ && !woken_ && waiting_.empty()) condition_.wait_for(mutex_, std::min(at_most, kRetryPause));
    if (at_most.count() > 0) gather();
    woken_ = false;
    while (batch_.size() < kBatchChanges && !ends_.empty()) {
      const uint64_t end = ends_.front();
      ends_.pop_front();
      for (; taken_ < end; ++taken_) {
        batch_.push_back(std::move(changes_.front()));
        changes_.pop_front();
      }
    }
    committed = taken_;
  }
  Result<void> outcome;
  if (!batch_.empty()) outcome = write();
  if (frozen()) outcome = fail(EIO, "the catalog is written no more until a restart");
  answer(committed, outcome);
}

void CatalogLog::freeze(const char* why) {
  log_error("{}: the disk tier keeps what its catalog has and gets nothing more until the pool starts again",
            why);
  MutexLock lock(mutex_);
  frozen_ = true;
  batch_.clear();
  changes_.clear();
  ends_.clear();
  committed_ = taken_ = appended_;
}

Result<void> CatalogLog::write() {
  const bool holds_contents = std::ranges::any_of(
      batch_, [](const CatalogChange& change) { return std::holds_alternative<PutContent>(change); });
  if (holds_contents) {
    if (auto flushed = device_.flush(); !flushed) {
      count(counters_.catalog_errors);
      // What was written before may be lost although a later flush succeeds, and nothing tells which of it.
      freeze("a flush of the disk failed");
      return flushed;
    }
  }
  fault_point("disk flushed");
  auto freed = catalog_.commit(batch_);
  if (!freed) {
    count(counters_.catalog_errors);
    if (pending() > kPendingChanges) freeze("too much waits for a catalog that cannot be written");
    if (!std::exchange(failing_, true))
      log_error("{}: what changes stays in memory until the catalog can be written again",
                freed.error().message);
    return pass(freed);
  }
  fault_point("catalog committed");
  count(counters_.catalog_commits);
  batch_.clear();
  if (std::exchange(failing_, false)) log_info("the catalog is written again");
  if (!freed->empty()) freed_(*freed);
  return {};
}

size_t CatalogLog::pending() const {
  MutexLock lock(mutex_);
  return batch_.size() + changes_.size();
}

void CatalogLog::answer(uint64_t committed, const Result<void>& outcome) {
  std::vector<Waiter> answered;
  {
    MutexLock lock(mutex_);
    if (outcome) committed_ = committed;
    // After a failure nobody is left to wait for the next try, which may be long.
    while (!waiting_.empty() && (!outcome || waiting_.front().after <= committed)) {
      answered.push_back(std::move(waiting_.front().waiter));
      waiting_.pop_front();
    }
  }
  for (Waiter& waiter : answered) waiter(outcome);
}

}  // namespace kvcachefs
