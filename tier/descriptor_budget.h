// Descriptors that the daemon holds on behalf of users, who would otherwise decide how full the one table is
// that supervisor and child share (daemon/supervisor.h): one for each inode without a name that is in use, in
// daemon I/O one for each open entry. Each is charged to the inode's owner and to the pool, and both have a
// share of all there are, so that whoever reaches his leaves the others theirs.
// Any thread. Failure: EDQUOT and a sentence when a share is used up; nothing is charged then.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>
#include <utility>

#include "base/mutex.h"
#include "base/result.h"

namespace kvcachefs {

class DescriptorBudget {
 public:
  // One descriptor, until it is destroyed.
  class Charge {
   public:
    Charge() = default;
    Charge(Charge&& other) noexcept
        : budget_(std::exchange(other.budget_, nullptr)), owner_(other.owner_), pool_(other.pool_) {}
    Charge& operator=(Charge&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(owner_, other.owner_);
      std::swap(pool_, other.pool_);
      return *this;
    }
    ~Charge() {
      if (budget_ != nullptr) budget_->give_back(owner_, pool_);
    }

   private:
    friend class DescriptorBudget;
    Charge(DescriptorBudget& budget, uid_t owner, uint16_t pool)
        : budget_(&budget), owner_(owner), pool_(pool) {}
    DescriptorBudget* budget_ = nullptr;
    uid_t owner_ = 0;
    uint16_t pool_ = 0;
  };

  // How many the process may have; before the first is charged.
  void limit(uint64_t descriptors) { descriptors_ = descriptors; }
  uint64_t share_of_user() const { return descriptors_ / 4; }
  uint64_t share_of_pool() const { return descriptors_ / 2; }
  uint64_t share_of_all() const { return descriptors_ - descriptors_ / 8; }

  Result<Charge> charge(uid_t owner, uint16_t pool) EXCLUDES(mutex_);
  // What a process that died had charged: it is held already.
  Charge charge_held(uid_t owner, uint16_t pool) EXCLUDES(mutex_);

 private:
  void give_back(uid_t owner, uint16_t pool) EXCLUDES(mutex_);
  void count(uid_t owner, uint16_t pool) REQUIRES(mutex_);

  uint64_t descriptors_ = 1 << 20;
  Mutex mutex_;
  uint64_t all_ GUARDED_BY(mutex_) = 0;
  // Of those that have any.
  std::unordered_map<uid_t, uint64_t> of_user_ GUARDED_BY(mutex_);
  std::unordered_map<uint16_t, uint64_t> of_pool_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
