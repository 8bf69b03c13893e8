// A QueryBudget limits the memory of open queries and their answers (fs/control/queries.h): for each user,
// and for all users together. Between that second limit and twice as much each user may still take a little,
// so that a few users cannot keep the others from asking at all. Any thread; the lock is a leaf. Failure: a
// request beyond a limit is refused.
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

  // A user's uid, or kAdministrator for the host's administrator, because root of a container has the uid 0
  // too.
  using Payer = uint64_t;
  static constexpr Payer kAdministrator = uint64_t{1} << 32;

  // A Part is the memory of one query or answer. Its destructor gives the memory back.
  class Part {
   public:
    Part(QueryBudget& budget, Payer user) : budget_(&budget), user_(user) {}
    Part(const Part&) = delete;
    Part& operator=(const Part&) = delete;
    ~Part() { set(0); }

    // The part takes this many bytes from now on. Returns false if that is refused: the part then keeps its
    // former size.
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
