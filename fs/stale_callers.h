// StaleCallers remembers the threads that have just been told ESTALE. The kernel answers an ESTALE by looking
// the name up again and trying once more; a second ESTALE goes to the client, which expects a miss to look
// like ENOENT. A second one comes when the name's entry is discarded, stored anew and discarded again within
// one call. Other requests of the same call (for a directory's attributes, to check permissions) come in
// between, so a mark ends by its age or by the call's success. A second ESTALE does not end it: the kernel
// swallows an ESTALE to its check of a name that it knows, and then looks the name up in earnest. Any thread;
// never fails.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <unordered_map>

#include "base/clock.h"
#include "base/mutex.h"

namespace kvcachefs {

class StaleCallers {
 public:
  // True if the thread was told ESTALE before within the same call.
  bool again(pid_t thread) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const uint64_t now_ms = now_coarse_ms();  // under the lock, so no mark is later than now
    const auto is_old = [&](uint64_t told_ms) { return now_ms - told_ms > kCallMs; };
    if (now_ms - swept_ms_ > kSweepMs) {
      swept_ms_ = now_ms;
      std::erase_if(threads_, [&](const auto& told) { return is_old(told.second); });
    }
    const auto [told, first] = threads_.try_emplace(thread, now_ms);
    some_.store(true, std::memory_order_release);
    if (first || !is_old(told->second)) return !first;
    told->second = now_ms;
    return false;
  }

  // True if the thread was told ESTALE in the call that it makes, or shortly before.
  bool told(pid_t thread) EXCLUDES(mutex_) {
    if (!some_.load(std::memory_order_acquire)) return false;
    MutexLock lock(mutex_);
    return threads_.contains(thread);
  }

  // A call of the thread that could have been told ESTALE has succeeded. True if it was told.
  bool settled(pid_t thread) EXCLUDES(mutex_) {
    if (!some_.load(std::memory_order_acquire)) return false;
    MutexLock lock(mutex_);
    const bool was_told = threads_.erase(thread) > 0;
    some_.store(!threads_.empty(), std::memory_order_release);
    return was_told;
  }

 private:
  // The time is longer than a second try takes that waits for a takeover, which looks at a million entries in
  // up to 14 s. A mark that outlives its call costs the thread's next call its second try: one more miss.
  static constexpr uint64_t kCallMs = 30'000;

  static constexpr uint64_t kSweepMs = 1000;  // marks of threads that never ask again may be many

  std::atomic<bool> some_{false};
  Mutex mutex_;
  std::unordered_map<pid_t, uint64_t> threads_ GUARDED_BY(mutex_);
  uint64_t swept_ms_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
