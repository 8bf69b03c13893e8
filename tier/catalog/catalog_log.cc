#include "tier/catalog/catalog_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"

namespace kvcachefs {
namespace {

// A transaction takes a few milliseconds of the disk's time, however much it holds; no waiter waits for these
// changes.
constexpr auto kGatheringTime = std::chrono::milliseconds(5);
constexpr auto kRetryPause = std::chrono::milliseconds(500);
// The most changes of one transaction, so that a waiter for the first of many does not wait for all of them.
constexpr size_t kBatchChanges = 8192;
// The most bytes of one transaction, because LMDB takes no more than 512 MiB of pages, and a node is as large
// as its attributes.
constexpr uint64_t kBatchBytes = uint64_t{64} << 20;
// The most bytes kept for a catalog that cannot be written.
constexpr uint64_t kMostPendingBytes = 300'000'000;
constexpr uint64_t kUsualChangeBytes = 300;

uint64_t bytes_of(const CatalogChange& change) {
  const auto* const put = std::get_if<PutNode>(&change);
  uint64_t bytes = kUsualChangeBytes;
  if (put == nullptr) return bytes;
  for (const auto& [name, value] : put->node.xattrs) bytes += name.size() + value.size();
  return bytes + put->node.link_target.size();
}

uint64_t bytes_of(std::span<const CatalogChange> changes) {
  uint64_t bytes = 0;
  for (const CatalogChange& change : changes) bytes += bytes_of(change);
  return bytes;
}

}  // namespace

void CatalogLog::note_lost(const auto& changes) {
  if (!flush_failed_) return;
  for (const CatalogChange& change : changes)
    if (const auto* const put = std::get_if<PutContent>(&change)) lost_nodes_.insert(put->id);
}

void CatalogLog::append(std::vector<CatalogChange> changes) {
  if (changes.empty()) return;
  bool worth_a_step = false;
  const uint64_t bytes = bytes_of(changes);
  {
    MutexLock lock(mutex_);
    if (frozen()) return note_lost(changes);
    if (closed_ || replaces_waiting(changes)) return;
    pending_bytes_ += bytes;
    // The first change ends the wait for work, and the last of a full batch ends the wait for more.
    worth_a_step = changes_.empty() || changes_.size() + changes.size() >= kBatchChanges;
    for (size_t i = 0; i < changes.size(); ++i)
      if (const auto* const put = std::get_if<PutNode>(&changes[i])) put_at_[put->node.id] = appended_ + i;
    appended_ += changes.size();
    ends_.push_back(appended_);
    std::move(changes.begin(), changes.end(), std::back_inserter(changes_));
  }
  if (worth_a_step) condition_.notify_one();
}

// Nothing between the two places goes by the node's attributes. A PutNode that comes with names or a content
// stays where it is, because the names before it may have been the node's last, and it brings the node back.
bool CatalogLog::replaces_waiting(std::vector<CatalogChange>& changes) {
  auto* const put = changes.size() == 1 ? std::get_if<PutNode>(&changes.front()) : nullptr;
  const auto found = put == nullptr ? put_at_.end() : put_at_.find(put->node.id);
  if (found == put_at_.end()) return false;
  CatalogChange& waiting = changes_[found->second - taken_];
  pending_bytes_ -= bytes_of(waiting);
  auto& its = std::get<PutNode>(waiting);
  if (put->attributes_alone) {
    put->node.link_target = std::move(its.node.link_target);
    put->node.xattrs = std::move(its.node.xattrs);
    put->attributes_alone = its.attributes_alone;
  }
  its = std::move(*put);
  pending_bytes_ += bytes_of(waiting);
  return true;
}

void CatalogLog::wait(Waiting waiting) {
  {
    MutexLock lock(mutex_);
    waiting.after = appended_;
    if (!closed_) waiting_.push_back(std::exchange(waiting, {}));
  }
  if (waiting.waiter) return waiting.waiter(fail(ESHUTDOWN));
  condition_.notify_one();
}

void CatalogLog::tell_of_hang(uint64_t now_ms) {
  const uint64_t since_ms = writing_since_ms_;
  if (since_ms == 0 || now_ms < since_ms + kHangMs) return;
  std::vector<Waiter> told;
  {
    MutexLock lock(mutex_);
    for (Waiting& each : waiting_)
      if (each.gives_up) told.push_back(std::move(each.waiter));
    std::erase_if(waiting_, [](const Waiting& each) { return each.gives_up; });
  }
  for (Waiter& waiter : told)
    waiter(fail(ETIMEDOUT, fmt::format("the catalog's disk has not answered for {} s", kHangMs / 1000)));
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
  step(std::chrono::milliseconds(0));  // writes what the last removed names have left
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
    if (at_most.count() > 0 && !is_full()) gather();
    woken_ = false;
    uint64_t batch_bytes = bytes_of(batch_);
    while (batch_.size() < kBatchChanges && batch_bytes < kBatchBytes && !ends_.empty()) {
      const uint64_t end = ends_.front();
      ends_.pop_front();
      for (; taken_ < end; ++taken_) {
        if (const auto* const put = std::get_if<PutNode>(&changes_.front()))
          if (const auto at = put_at_.find(put->node.id); at != put_at_.end() && at->second == taken_)
            put_at_.erase(at);
        batch_bytes += bytes_of(changes_.front());
        batch_.push_back(std::move(changes_.front()));
        changes_.pop_front();
      }
    }
    committed = taken_;
  }
  Result<void> outcome;
  if (!batch_.empty()) {
    writing_since_ms_ = now_coarse_ms();
    outcome = write();
    writing_since_ms_ = 0;
  }
  if (frozen()) outcome = fail(EIO, "the catalog is written no more until a restart");
  answer(committed, outcome);
}

void CatalogLog::freeze(const char* why, bool flush_failed) {
  log_error("{}: the disk tier keeps what its catalog has and gets nothing more until the pool starts again",
            why);
  MutexLock lock(mutex_);
  frozen_ = true;
  flush_failed_ = flush_failed;
  std::ranges::move(batch_, std::back_inserter(changes_));
  note_lost(changes_);
  batch_.clear();
  changes_.clear();
  ends_.clear();
  put_at_.clear();
  pending_bytes_ = 0;
  committed_ = taken_ = appended_;
}

bool CatalogLog::has_lost(uint64_t node_id) const {
  if (!frozen()) return false;
  MutexLock lock(mutex_);
  return lost_nodes_.contains(node_id);
}

Result<void> CatalogLog::write() {
  const bool holds_contents = std::ranges::any_of(
      batch_, [](const CatalogChange& change) { return std::holds_alternative<PutContent>(change); });
  if (holds_contents) {
    if (auto flushed = device_.flush(); !flushed) {
      count(counters_.catalog_errors);
      // Earlier writes may be lost even if a later flush succeeds, and nothing tells which of them.
      freeze("a flush of the disk failed", true);
      return flushed;
    }
  }
  fault_point("disk flushed");
  auto freed = catalog_.commit(batch_);
  if (!freed) {
    count(counters_.catalog_errors);
    if (pending_bytes_ > kMostPendingBytes)
      freeze("too much waits for a catalog that cannot be written", false);
    if (!std::exchange(failing_, true))
      log_error("{}: changes are kept in memory until the catalog can be written again",
                freed.error().message);
    return pass(freed);
  }
  fault_point("catalog committed");
  count(counters_.catalog_commits);
  pending_bytes_ -= bytes_of(batch_);
  batch_.clear();
  if (std::exchange(failing_, false)) log_info("the catalog is written again");
  if (!freed->empty()) freed_(*freed);
  return {};
}

void CatalogLog::answer(uint64_t committed, const Result<void>& outcome) {
  std::vector<Waiter> answered;
  {
    MutexLock lock(mutex_);
    if (outcome) committed_ = committed;
    // After a failure every waiter is told, because the next try may be long in coming.
    while (!waiting_.empty() && (!outcome || waiting_.front().after <= committed)) {
      answered.push_back(std::move(waiting_.front().waiter));
      waiting_.pop_front();
    }
  }
  for (Waiter& waiter : answered) waiter(outcome);
}

}  // namespace kvcachefs
