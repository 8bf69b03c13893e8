// ThreadGroups finds the process that a thread belongs to, because a FUSE request names only the thread. Any
// thread; the first call for a thread blocks on procfs (15 us). The result is only a hint: a thread number
// that is used again may give the earlier process, and a thread that cannot be read counts as a process of
// its own.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"

namespace kvcachefs {

class ThreadGroups {
 public:
  uint64_t of(pid_t thread) EXCLUDES(mutex_);

 private:
  static constexpr size_t kMost = 4096;  // then all are looked up anew

  Mutex mutex_;
  std::unordered_map<pid_t, pid_t> groups_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
