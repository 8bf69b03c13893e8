// Who has just been told ESTALE. The kernel answers an ESTALE by looking the name up again and trying once
// more; a second one goes to the client, which expects a miss to look like ENOENT. That happens when the
// name's entry is discarded, stored anew and discarded again within one call. Other requests of the same call
// (a directory's attributes, to check permissions) come in between, so the mark goes by age or by the call's
// success. Any thread; never fails.
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
  // True if this is the second time within one call of the thread.
  bool again(pid_t thread) EXCLUDES(mutex_) {
    const uint64_t now_ms = now_coarse_ms();
    MutexLock lock(mutex_);
    std::erase_if(threads_, [&](const auto& told) { return now_ms - told.second > kCallMs; });
    const bool second = !threads_.try_emplace(thread, now_ms).second;
    if (second) threads_.erase(thread);
    some_.store(!threads_.empty(), std::memory_order_release);
    return second;
  }

  // A call of the thread that could have been told ESTALE ended well.
  void settled(pid_t thread) EXCLUDES(mutex_) {
    if (!some_.load(std::memory_order_acquire)) return;
    MutexLock lock(mutex_);
    threads_.erase(thread);
    some_.store(!threads_.empty(), std::memory_order_release);
  }

 private:
  // Longer than a second try takes on a loaded machine, short against the pace of one client's misses.
  static constexpr uint64_t kCallMs = 200;

  std::atomic<bool> some_{false};
  Mutex mutex_;
  std::unordered_map<pid_t, uint64_t> threads_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
