#include "tests/support/faulty_channel.h"

#include <algorithm>
#include <cerrno>

#include "base/check.h"

namespace kvcachefs::test {
namespace {

constexpr std::byte kRubbish{0xa5};
constexpr std::chrono::milliseconds kLongestWait = std::chrono::hours(1);

}  // namespace

FaultyChannel::~FaultyChannel() {
  MutexLock lock(disk_.mutex_);
  // Because a real disk finishes the requests it has, the destructor carries them out. Waiting for a release
  // would hang a test of one thread.
  while (!at_disk_.empty()) {
    const BlockRequest request = at_disk_.back();
    disk_.carry_out(request);
    if (!at_disk_.empty()) at_disk_.pop_back();  // at_disk_ is empty if the disk died at this request
  }
  disk_.channels_.erase(this);
}

void FaultyChannel::submit(std::span<const BlockRequest> requests) {
  MutexLock lock(disk_.mutex_);
  for (const BlockRequest& request : requests) {
    const auto address = reinterpret_cast<uintptr_t>(request.memory.data());
    const uint32_t alignment_bytes = disk_.alignment_bytes();
    KVCACHEFS_CHECK(!request.memory.empty());
    KVCACHEFS_CHECK((request.offset | request.memory.size() | address) % alignment_bytes == 0);
    const uint64_t size_bytes = disk_.size_bytes();
    const bool read = request.kind == BlockRequest::Kind::kRead;
    if (request.offset > size_bytes || request.memory.size() > size_bytes - request.offset) {
      ready_.push_back({request.tag, read ? EIO : ENOSPC});
      continue;
    }
    if (read) std::ranges::fill(request.memory, kRubbish);
    queued_.push_back(request);
  }
  hand_over();
}

void FaultyChannel::hand_over() {
  if (disk_.dead_) return fail_all();
  while (at_disk_.size() < depth_ && !queued_.empty()) {
    at_disk_.push_back(queued_.front());
    queued_.pop_front();
  }
  uint64_t at_once = 0;
  for (const FaultyChannel* channel : disk_.channels_) at_once += channel->at_disk_.size();
  disk_.counts_.most_at_once = std::max(disk_.counts_.most_at_once, at_once);
}

void FaultyChannel::fail_all() {
  for (const BlockRequest& request : at_disk_) ready_.push_back({request.tag, EIO});
  for (const BlockRequest& request : queued_) ready_.push_back({request.tag, EIO});
  at_disk_.clear();
  queued_.clear();
}

void FaultyChannel::work(std::vector<BlockCompletion>& out) {
  uint64_t count = std::min<uint64_t>(at_disk_.size(), disk_.allowed_);
  if (!disk_.options_.in_order && count > 1) count = 1 + disk_.random_.below(count);
  for (; count > 0 && !at_disk_.empty(); --count) {
    const size_t index = disk_.options_.in_order ? 0 : disk_.random_.below(at_disk_.size());
    const BlockRequest request = at_disk_[index];
    // The request stays in at_disk_ meanwhile, so that a crash at this write leaves a part of its bytes.
    const int error = disk_.carry_out(request);
    if (disk_.dead_) return;  // die() has failed this request and all others
    at_disk_.erase(at_disk_.begin() + static_cast<std::ptrdiff_t>(index));
    if (disk_.allowed_ != UINT64_MAX) --disk_.allowed_;
    out.push_back({request.tag, error});
  }
}

size_t FaultyChannel::reap(std::vector<BlockCompletion>& out, std::chrono::milliseconds at_most) {
  const size_t before = out.size();
  const auto deadline = std::chrono::steady_clock::now() + std::min(at_most, kLongestWait);
  MutexLock lock(disk_.mutex_);
  for (;;) {
    hand_over();
    work(out);
    out.insert(out.end(), ready_.begin(), ready_.end());
    ready_.clear();
    hand_over();
    const auto left = deadline - std::chrono::steady_clock::now();
    if (out.size() > before || woken_ || left.count() <= 0) {
      woken_ = false;
      return out.size() - before;
    }
    disk_.changed_.wait_for(disk_.mutex_, left);
  }
}

size_t FaultyChannel::in_flight() const {
  MutexLock lock(disk_.mutex_);
  return at_disk_.size() + queued_.size() + ready_.size();
}

void FaultyChannel::wake() {
  MutexLock lock(disk_.mutex_);
  woken_ = true;
  disk_.changed_.notify_all();
}

}  // namespace kvcachefs::test
