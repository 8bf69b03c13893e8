#include "fs/control_reads.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fs/caller.h"
#include "fs/server.h"

namespace kvcachefs {

void ControlReads::run(const Request& request, Job job) {
  const User user = {Caller::user_of(fuse_req_ctx(request)->pid, fuse_req_ctx(request)->uid),
                     need_administrator(request).has_value()};
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

std::optional<ControlReads::User> ControlReads::next_user() const {
  std::optional<User> first;
  const bool is_full = std::ranges::count(under_way_, false, &User::is_administrator) >= kWorkers - 1;
  for (const auto& [user, queue] : waiting_) {
    if (under_way_.contains(user) || (is_full && !user.is_administrator)) continue;
    if (user > last_user_) return user;
    if (!first) first = user;
  }
  return first;
}

void ControlReads::step(Survivors& survivors, std::chrono::milliseconds at_most) {
  Job next;
  User user;
  {
    MutexLock lock(mutex_);
    if (!next_user() && !ended_) condition_.wait_for(mutex_, at_most);
    const auto turn = next_user();
    if (!turn) return;
    user = last_user_ = *turn;
    auto& queue = waiting_[user];
    next = std::move(queue.front().job);
    queue.pop_front();
    if (queue.empty()) waiting_.erase(user);
    under_way_.insert(user);
  }
  survivors.requests().begin(0, false);
  next();
  survivors.requests().end();
  MutexLock lock(mutex_);
  under_way_.erase(user);
  condition_.notify_one();
}

void ControlReads::end() {
  std::map<User, std::deque<Waiting>> left;
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
