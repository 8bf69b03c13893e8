// Restoring says of a pool whether its catalog is being read while it serves, so that names appear, and which
// files of the catalog may still come. Any thread; one of them begins, goes on and ends. Never fails.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_set>
#include <utility>

#include "base/mutex.h"

namespace kvcachefs {

class Restoring {
 public:
  bool restoring() const { return restoring_; }
  void set_restoring(bool restoring) { restoring_ = restoring; }
  // If the disk tier is in use meanwhile, files come back in the order of their numbers, of which `last` is
  // the highest. A file up to restored_up_to() can lose its name: a successor would not bring it back.
  void set_last_to_restore(uint64_t last) { last_ = last; }
  void set_restored_up_to(uint64_t id) { up_to_.store(id, std::memory_order_release); }
  uint64_t restored_up_to() const { return up_to_.load(std::memory_order_acquire); }
  bool may_come_back(uint64_t node_id) const { return node_id > restored_up_to() && node_id <= last_; }
  // Mode, owner, times or xattrs of the inode have changed; end_restoring() answers those noted.
  void note_changed(uint64_t ino) EXCLUDES(changed_mutex_) {
    if (!restoring_) return;
    MutexLock lock(changed_mutex_);
    if (restoring_) changed_meanwhile_.insert(ino);
  }
  std::unordered_set<uint64_t> end_restoring() EXCLUDES(changed_mutex_) {
    MutexLock lock(changed_mutex_);
    restoring_ = false;
    return std::exchange(changed_meanwhile_, {});
  }

 private:
  std::atomic<bool> restoring_{false};  // cleared after the tier is in use
  std::atomic<uint64_t> up_to_{0};
  std::atomic<uint64_t> last_{UINT64_MAX};
  Mutex changed_mutex_;
  std::unordered_set<uint64_t> changed_meanwhile_ GUARDED_BY(changed_mutex_);
};

}  // namespace kvcachefs
