#include "tier/pool/waiting_lane.h"

#include <utility>

namespace kvcachefs {

bool WaitingLane::hand_over(Job& job, const std::function<bool()>& start) {
  for (bool none_to_be_had = false;;) {
    {
      MutexLock lock(mutex_);
      if (ended_) return false;
      if (idle_ > jobs_.size() || threads_ == most_threads_ || none_to_be_had) {
        if (threads_ == 0) return false;
        jobs_.push_back(std::move(job));
        ++size_;
        condition_.notify_one();
        return true;
      }
      ++threads_;
      ++idle_;
    }
    if (start()) continue;
    MutexLock lock(mutex_);
    --threads_;
    --idle_;
    none_to_be_had = true;
  }
}

bool WaitingLane::step(std::chrono::milliseconds at_most) {
  Job job;
  {
    MutexLock lock(mutex_);
    if (jobs_.empty() && !ended_) condition_.wait_for(mutex_, at_most);
    --idle_;
    if (jobs_.empty()) {
      --threads_;
      return false;
    }
    job = std::move(jobs_.front());
    jobs_.pop_front();
  }
  job();
  job = {};  // what it keeps goes before it stops counting
  MutexLock lock(mutex_);
  ++idle_;
  --size_;
  return true;
}

void WaitingLane::end() {
  {
    MutexLock lock(mutex_);
    ended_ = true;
  }
  condition_.notify_all();
}

}  // namespace kvcachefs
