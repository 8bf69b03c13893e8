#include "tier/disk/away_disk.h"

#include <fmt/format.h>

#include <cerrno>
#include <utility>

namespace kvcachefs {

void AwayDisk::wait(Waiter waiter) {
  int code = EIO;
  {
    MutexLock lock(mutex_);
    if (closed_) {
      code = ESHUTDOWN;
    } else if (may_be_waited_for()) {
      waiting_.push_back(std::move(waiter));
      return;
    }
  }
  waiter(fail(code));
}

void AwayDisk::step() {
  if (!may_be_waited_for()) answer(EIO);
}

void AwayDisk::close() {
  {
    MutexLock lock(mutex_);
    closed_ = true;
  }
  answer(ESHUTDOWN);
}

void AwayDisk::answer(int code) {
  std::vector<Waiter> answered;
  {
    MutexLock lock(mutex_);
    answered.swap(waiting_);
  }
  for (Waiter& waiter : answered) waiter(fail(code));
}

bool keeps_for_disk(const AwayDisk* away, const Entry& entry, Durability durability) {
  return away != nullptr &&
         (entry.tier != Entry::Tier::kDirty || entry.node_id != 0 || durability != Durability::kNone);
}

void durable_without_disk(AwayDisk* away, Waiter waiter) {
  if (away == nullptr) return waiter({});
  away->wait(std::move(waiter));
}

std::unexpected<Error> refuse_without_disk(const AwayDisk* away, const std::string& pool) {
  if (away != nullptr) return fail(EIO, fmt::format("pool {}: its disk is away", pool));
  return fail(EOPNOTSUPP, fmt::format("pool {} has no disk tier", pool));
}

}  // namespace kvcachefs
