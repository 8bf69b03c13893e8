#include "tier/disk/away_disk.h"

#include <cerrno>
#include <utility>

namespace kvcachefs {

constexpr PromoteOutcome kStillAway = {PromoteOutcome::Kind::kFailed, {Finding::Kind::kUnreadable, EIO}};

void AwayDisk::wait(PromoteWaiter waiter) {
  bool ending = false;
  {
    MutexLock lock(mutex_);
    ending = closed_;
    if (!ending && may_be_waited_for()) return waiting_.push_back(std::move(waiter));
  }
  waiter(ending ? kEnding : kStillAway);
}

void AwayDisk::step() {
  if (!may_be_waited_for()) answer(kStillAway);
}

void AwayDisk::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  answer(kEnding);
}

void AwayDisk::answer(const PromoteOutcome& outcome) {
  std::vector<PromoteWaiter> answered;
  {
    MutexLock lock(mutex_);
    answered.swap(waiting_);
  }
  for (PromoteWaiter& waiter : answered) waiter(outcome);
}

bool keeps_for_disk(const AwayDisk* away, const Entry& entry, Durability durability) {
  return away != nullptr &&
         (entry.tier != Entry::Tier::kDirty || entry.disk.node_id != 0 || durability != Durability::kNone);
}

}  // namespace kvcachefs
