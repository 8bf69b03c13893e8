// Reads of control files that look at every entry of a pool, which may take seconds: done by a thread of
// their own, so that no server thread waits. That thread is watched as one that has a request in hand, and
// says while it looks that it gets on (Survivors::still_at_it()). Users take turns, so that one who asks a
// lot does not keep others waiting. run() is for server threads, step() for one worker's. Failure: EAGAIN to
// a user who has too many waiting.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>

#include "base/mutex.h"
#include "fs/fuse.h"
#include "tier/survivors.h"

namespace kvcachefs {

class ControlReads {
 public:
  using Job = std::function<void()>;           // answers the request
  static constexpr size_t kMostWaiting = 256;  // of a user

  void run(fuse_req_t request, Job job) EXCLUDES(mutex_);
  // Does the next, waiting at most so long for one.
  void step(Survivors& survivors, std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  // No run() comes any more: whoever still waits is answered, and step() does not wait.
  void end() EXCLUDES(mutex_);

 private:
  struct Waiting {
    fuse_req_t request;
    Job job;
  };

  Mutex mutex_;
  Condition condition_;
  bool ended_ GUARDED_BY(mutex_) = false;
  std::map<uid_t, std::deque<Waiting>> waiting_ GUARDED_BY(mutex_);  // of users who have any
  uid_t last_user_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
