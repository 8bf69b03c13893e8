#include "fs/log_reads.h"

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/fault_point.h"
#include "fs/caller.h"

namespace kvcachefs {
namespace {

// Events wake no thread: for a waiting reader they are looked for this often.
constexpr auto kLookAgain = std::chrono::milliseconds(20);
constexpr unsigned kLooksForASignal = 5;  // a look at proc(5) takes 20 us
constexpr int kLooksAtTheEnd = 50;
// The caller sleeps uninterruptibly, and the kernel warns of a process that does so for 120 s
// (kernel.hung_task_timeout_secs).
constexpr uint64_t kLongestWaitMs = 60'000;
constexpr std::string_view kNothing = "# nothing has happened for a while\n";

uint64_t longest_wait_ns() {
  const int injected_ms = injected_error("log read waits");
  return (injected_ms > 0 ? static_cast<uint64_t>(injected_ms) : kLongestWaitMs) * 1'000'000;
}

}  // namespace

void LogReads::run(const Request& request, std::shared_ptr<ControlReader> reader, size_t size,
                   bool may_wait) {
  {
    MutexLock lock(mutex_);
    if (!ended_) {
      waiting_.push_back({request, std::move(reader), size, may_wait, now_ns()});
      has_new_ = true;
      condition_.notify_all();
      return;
    }
  }
  (void)fuse_reply_buf(request, nullptr, 0);
}

bool LogReads::answered(const Waiting& read, bool looks_for_signal) {
  const std::string text = read.reader->read(0, read.size);
  if (!text.empty()) return (void)fuse_reply_buf(read.request, text.data(), text.size()), true;
  if (!read.may_wait) return (void)fuse_reply_err(read.request, EAGAIN), true;
  if (!looks_for_signal) return false;
  if (now_ns() - read.begun_ns > longest_wait_ns())
    return (void)fuse_reply_buf(read.request, kNothing.data(), std::min(kNothing.size(), read.size)), true;
  const auto caller = Caller::of(fuse_req_ctx(read.request)->pid);
  if (caller && !caller->has_signal()) return false;
  (void)fuse_reply_err(read.request, EINTR);
  return true;
}

void LogReads::step(Survivors& survivors, std::chrono::milliseconds at_most) {
  std::vector<Waiting> reads;
  {
    MutexLock lock(mutex_);
    if (!has_new_ && !ended_) condition_.wait_for(mutex_, waiting_.empty() ? at_most : kLookAgain);
    has_new_ = false;
    if (waiting_.empty()) return;
    in_hand_ = true;
    reads.swap(waiting_);
  }
  const bool looks_for_signals = ++looks_ % kLooksForASignal == 0;
  survivors.requests().begin(0, false);
  std::erase_if(reads, [&](const Waiting& read) { return answered(read, looks_for_signals); });
  survivors.requests().end();
  MutexLock lock(mutex_);
  std::move(reads.begin(), reads.end(), std::back_inserter(waiting_));
  in_hand_ = false;
  condition_.notify_all();
}

void LogReads::end() {
  std::vector<Waiting> left;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    for (int looks = 0; in_hand_ && looks < kLooksAtTheEnd; ++looks) condition_.wait_for(mutex_, kLookAgain);
    left.swap(waiting_);
  }
  condition_.notify_all();
  for (const Waiting& read : left)
    if (!answered(read, false)) (void)fuse_reply_buf(read.request, nullptr, 0);
}

}  // namespace kvcachefs
