// Who has just been told ESTALE. The kernel answers an ESTALE by looking the name up again and trying once
// more; a second one in a row goes to the client, which expects a miss to look like ENOENT. That happens when
// the name's entry is discarded, stored anew and discarded again within one call. Any thread; never fails.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <unordered_set>

#include "base/mutex.h"

namespace kvcachefs {

class StaleCallers {
 public:
  // True if this is the second time in a row for the thread.
  bool again(pid_t thread) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    const bool second = !threads_.insert(thread).second;
    if (second) threads_.erase(thread);
    some_.store(!threads_.empty(), std::memory_order_release);
    return second;
  }

  // A call of the thread came to an end another way.
  void settled(pid_t thread) EXCLUDES(mutex_) {
    if (!some_.load(std::memory_order_acquire)) return;
    MutexLock lock(mutex_);
    threads_.erase(thread);
    some_.store(!threads_.empty(), std::memory_order_release);
  }

 private:
  std::atomic<bool> some_{false};
  Mutex mutex_;
  std::unordered_set<pid_t> threads_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
