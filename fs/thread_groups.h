// ThreadGroups finds the process and the user that a thread belongs to: a FUSE request names only the thread
// and, where mapped ids are allowed (fs/mapped_ids.h), the user only where it creates something. Any thread;
// the first call for a thread blocks on procfs (15 us). The result is only a hint, to count by and not to
// allow by: a thread number that is used again may give the earlier process, a thread that changed its user
// the earlier user, and a thread that cannot be read counts as a process of its own and as user -1.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"

namespace kvcachefs {

class ThreadGroups {
 public:
  uint64_t of(pid_t thread) { return static_cast<uint64_t>(owner_of(thread).group); }
  // `told`: the user that the kernel has told, or -1.
  uid_t user_of(pid_t thread, uid_t told) {
    return told != static_cast<uid_t>(-1) ? told : owner_of(thread).user;
  }

 private:
  static constexpr size_t kMost = 4096;  // then all are looked up anew

  struct Owner {
    pid_t group;
    uid_t user;
  };
  Owner owner_of(pid_t thread) EXCLUDES(mutex_);

  Mutex mutex_;
  std::unordered_map<pid_t, Owner> owners_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
