// Who has just been told ESTALE. The kernel answers an ESTALE by looking the name up again and trying once
// more; a second one goes to the client, which expects a miss to look like ENOENT. That happens when the
// name's entry is discarded, stored anew and discarded again within one call. Other requests of the same call
// (a directory's attributes, to check permissions) come in between, so the mark goes by age or by the call's
// success. A second ESTALE does not take it away: the kernel swallows one that answers its checking of a name
// that it knows, and then looks the name up in earnest. Any thread; never fails.
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
  // True if this is not the first time within one call of the thread.
  bool again(pid_t thread) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const uint64_t now_ms = now_coarse_ms();  // under the lock: none is told later than now
    std::erase_if(threads_, [&](const auto& told) { return now_ms - told.second > kCallMs; });
    const bool first = threads_.try_emplace(thread, now_ms).second;
    some_.store(true, std::memory_order_release);
    return !first;
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
