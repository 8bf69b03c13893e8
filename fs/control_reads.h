// ControlReads are reads of control files that look at every entry of a pool, which may take seconds. A few
// threads of their own do them, so that no server thread waits. The supervisor watches those threads as ones
// that have a request in hand; during its look a thread reports progress (Requests::still_at_it()). Users
// take turns, and one read of a user is under way at a time, so a user with many or long reads keeps no other
// user waiting. The host's administrator counts as a separate user, because root of a container has the same
// uid, and one thread is reserved for the administrator. run() is for server threads, step() for workers.
// Failure: EAGAIN for a user with too many waiting reads.
#pragma once

#include <chrono>
#include <compare>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "base/mutex.h"
#include "fs/request.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

class ControlReads {
 public:
  using Job = std::function<void()>;           // answers the request
  static constexpr size_t kMostWaiting = 256;  // for each user
  static constexpr int kWorkers = 4;

  void run(const Request& request, Job job) EXCLUDES(mutex_);
  // The call does the next job, and waits for one for `at_most`.
  void step(Survivors& survivors, std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  // The call comes when no run() comes any more: requests that still wait are answered with ENOTCONN, and
  // step() does not wait.
  void end() EXCLUDES(mutex_);

 private:
  struct Waiting {
    Request request;
    Job job;
  };

  struct User {
    uid_t uid = 0;
    bool is_administrator = false;
    auto operator<=>(const User&) const = default;
  };
  std::optional<User> next_user() const REQUIRES(mutex_);  // the next in turn with no read under way

  Mutex mutex_;
  Condition condition_;
  bool ended_ GUARDED_BY(mutex_) = false;
  std::map<User, std::deque<Waiting>> waiting_ GUARDED_BY(mutex_);  // of users with waiting reads
  std::set<User> under_way_ GUARDED_BY(mutex_);                     // users with a read under way
  User last_user_ GUARDED_BY(mutex_) = {0, true};
};

}  // namespace kvcachefs
