// The memory that open queries and their answers take (fs/control/queries.h): each user has a share, and all
// together a limit, so that opens with large queries do not add up. Up to twice that limit each still has a
// little, so that a few users cannot keep the others from asking at all. Any thread; the lock is a leaf.
// Failure: nothing is given beyond a bound.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"

namespace kvcachefs {

class QueryBudget {
 public:
  static constexpr uint64_t kMostOfUser = 64 << 20;
  static constexpr uint64_t kMostOfAll = 512 << 20;
  static constexpr uint64_t kAlwaysOfUser = 1 << 20;
  static constexpr uint64_t kMostWithLittle = 2 * kMostOfAll;

  // A user's number, or the host's administrator, whose number root of a container has too.
  using Payer = uint64_t;
  static constexpr Payer kAdministrator = uint64_t{1} << 32;

  // What was given goes back with it.
  class Part {
   public:
    Part(QueryBudget& budget, Payer user) : budget_(&budget), user_(user) {}
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    ~Part() { set(0); }

    // It takes so many bytes from now on; false: it takes what it took before.
    bool set(uint64_t bytes) {
      if (!budget_->change(user_, bytes_, bytes)) return false;
      bytes_ = bytes;
      return true;
    }
    uint64_t bytes() const { return bytes_; }

   private:
    QueryBudget* budget_;
    const Payer user_;
    uint64_t bytes_ = 0;
  };

 private:
  bool change(Payer user, uint64_t before, uint64_t after) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    uint64_t& his = of_user_[user];
    const uint64_t his_then = his - before + after;
    const uint64_t most_of_all = his_then <= kAlwaysOfUser ? kMostWithLittle : kMostOfAll;
    const bool fits = after <= before || (his_then <= kMostOfUser && all_ - before + after <= most_of_all);
    if (fits) {
      his += after - before;
      all_ += after - before;
    }
    if (his == 0) of_user_.erase(user);
    return fits;
  }

  Mutex mutex_;
  uint64_t all_ GUARDED_BY(mutex_) = 0;
  std::unordered_map<Payer, uint64_t> of_user_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
