// Which process a thread belongs to: a FUSE request tells of the thread alone. Any thread; blocks on procfs
// (15 us) where it meets a thread for the first time. A number that is used again may name the process of
// before, and what cannot be found out is taken for a process of its own: for hints only.
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
  static constexpr size_t kMost = 4096;  // then all are found out again

  Mutex mutex_;
  std::unordered_map<pid_t, pid_t> groups_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
