// Restoring says of a pool whether its catalog is being read while it serves, so that names appear, which of
// them are still to come, and what clients have changed meanwhile. Any thread; one of them begins, goes on
// and ends. Never fails, but for its parts.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include "base/mutex.h"
#include "tier/pool/changed_names.h"
#include "tier/pool/names_to_come.h"

namespace kvcachefs {

class Restoring {
 public:
  bool restoring() const { return restoring_; }
  void set_restoring(bool restoring) { restoring_ = restoring; }
  // What is closed and not on the disk yet will go there: after the restore all of it is asked for at once.
  bool holds_spills() const { return restoring_ || spills_are_asked_for_; }
  void set_spills_are_asked_for(bool are) { spills_are_asked_for_ = are; }
  // If the disk tier is in use meanwhile, the restore brings back at once what a client asks for.
  NamesToCome& names_to_come() { return names_to_come_; }
  ChangedNames& changed_names() { return changed_names_; }
  const ChangedNames& changed_names() const { return changed_names_; }
  // The tree lacks names of the catalog. They may be in any directory, so no directory goes.
  bool lacks_names() const { return restoring_ || changed_names_.matters(); }
  // Mode, owner, times or xattrs of the inode have changed; end_restoring() answers those noted.
  void note_changed(uint64_t ino) EXCLUDES(changed_mutex_) {
    if (!restoring_) return;
    MutexLock lock(changed_mutex_);
    if (restoring_) changed_meanwhile_.insert(ino);
  }
  bool was_changed(uint64_t ino) EXCLUDES(changed_mutex_) {
    MutexLock lock(changed_mutex_);
    return changed_meanwhile_.contains(ino);
  }
  std::unordered_set<uint64_t> end_restoring() EXCLUDES(changed_mutex_) {
    MutexLock lock(changed_mutex_);
    restoring_ = false;
    return std::exchange(changed_meanwhile_, {});
  }

 private:
  std::atomic<bool> restoring_{false};  // cleared after the tier is in use
  std::atomic<bool> spills_are_asked_for_{false};
  NamesToCome names_to_come_;
  ChangedNames changed_names_;
  Mutex changed_mutex_;
  std::unordered_set<uint64_t> changed_meanwhile_ GUARDED_BY(changed_mutex_);
};

}  // namespace kvcachefs
