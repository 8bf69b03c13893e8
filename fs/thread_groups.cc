#include "fs/thread_groups.h"

#include "base/key_value.h"
#include "fs/caller.h"

namespace kvcachefs {

ThreadGroups::Owner ThreadGroups::owner_of(pid_t thread) {
  {
    MutexLock lock(mutex_);
    if (auto found = owners_.find(thread); found != owners_.end()) return found->second;
  }
  const auto caller = Caller::of(thread);
  const Owner owner = caller ? Owner{caller->group().value_or(thread), caller->user()}
                             : Owner{thread, static_cast<uid_t>(-1)};
  MutexLock lock(mutex_);
  if (owners_.size() >= kMost) owners_.clear();
  owners_[thread] = owner;
  return owner;
}

}  // namespace kvcachefs
