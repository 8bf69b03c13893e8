#include "fs/control_reads.h"

#include <cerrno>
#include <utility>

#include "fs/caller.h"
#include "fs/server.h"

namespace kvcachefs {

void ControlReads::run(const Request& request, Job job) {
  const uid_t user = Caller::user_of(fuse_req_ctx(request)->pid, fuse_req_ctx(request)->uid);
  {
    MutexLock lock(mutex_);
    auto& queue = waiting_[user];
    if (queue.size() < kMostWaiting) {
      queue.push_back({request, std::move(job)});
      condition_.notify_one();
      return;
    }
  }
  reply_error(request, {EAGAIN, {}});
}

void ControlReads::step(Survivors& survivors, std::chrono::milliseconds at_most) {
  Job next;
  {
    MutexLock lock(mutex_);
    if (waiting_.empty() && !ended_) condition_.wait_for(mutex_, at_most);
    if (waiting_.empty()) return;
    auto of_user = waiting_.upper_bound(last_user_);
    if (of_user == waiting_.end()) of_user = waiting_.begin();
    auto& [user, queue] = *of_user;
    last_user_ = user;
    next = std::move(queue.front().job);
    queue.pop_front();
    if (queue.empty()) waiting_.erase(of_user);
  }
  survivors.requests().begin(0, false);
  next();
  survivors.requests().end();
}

void ControlReads::end() {
  std::map<uid_t, std::deque<Waiting>> left;
  {
    MutexLock lock(mutex_);
    ended_ = true;
    left.swap(waiting_);
  }
  condition_.notify_one();
  for (auto& [user, queue] : left)
    for (Waiting& waiting : queue) (void)fuse_reply_err(waiting.request, ENOTCONN);
}

}  // namespace kvcachefs
