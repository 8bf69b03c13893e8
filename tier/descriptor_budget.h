// A budget limits the descriptors that the daemon holds on behalf of users. Supervisor and child share one
// table of descriptors (daemon/supervisor.h), and without a limit a user could fill it. The daemon holds one
// descriptor for each nameless inode in use and, in daemon I/O, one for each open entry. Each descriptor is
// charged to the inode's owner and to its pool. Both have a share of the table, so that a user or pool that
// reaches its share leaves the others theirs.
//
// Any thread. Failure: EDQUOT and a sentence when a share is used up; nothing is charged then.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "base/result.h"

namespace kvcachefs {

class DescriptorBudget {
 public:
  struct GiveBack {
    void operator()(DescriptorBudget* budget) const { budget->give_back(owner, pool); }
    uid_t owner;
    uint16_t pool;
  };
  // One charged descriptor; the destructor gives the charge back.
  using Charge = std::unique_ptr<DescriptorBudget, GiveBack>;

  // limit() sets how many descriptors the process may have; it is called before the first charge.
  void limit(uint64_t descriptors) { descriptors_ = descriptors; }
  uint64_t share_of_user() const { return descriptors_ / 4; }
  uint64_t share_of_pool() const { return descriptors_ / 2; }
  uint64_t share_of_all() const { return descriptors_ - descriptors_ / 8; }

  Result<Charge> charge(uid_t owner, uint16_t pool) EXCLUDES(mutex_);
  // charge_held() charges a descriptor that a process which died had charged. Because the descriptor is held
  // already, it never fails.
  Charge charge_held(uid_t owner, uint16_t pool) EXCLUDES(mutex_);

 private:
  void give_back(uid_t owner, uint16_t pool) EXCLUDES(mutex_);
  void count(uid_t owner, uint16_t pool) REQUIRES(mutex_);

  uint64_t descriptors_ = 1 << 20;
  Mutex mutex_;
  uint64_t all_ GUARDED_BY(mutex_) = 0;
  // The maps hold only users and pools that have a descriptor charged.
  std::unordered_map<uid_t, uint64_t> of_user_ GUARDED_BY(mutex_);
  std::unordered_map<uint16_t, uint64_t> of_pool_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
