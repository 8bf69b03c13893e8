#include "tier/pool/changed_names.h"

#include <algorithm>
#include <cerrno>
#include <vector>

namespace kvcachefs {

void ChangedNames::begin(int root, uint64_t last, const RestoringMark& mark) {
  MutexLock lock(mutex_);
  root_ = root;
  last_ = last;
  up_to_ = mark.up_to;
  changed_ = {mark.changed.begin(), mark.changed.end()};
  reached_ = mark.up_to;
  matters_.store(true, std::memory_order_release);
}

void ChangedNames::mark_reached() {
  MutexLock lock(mutex_);
  if (matters_) (void)put();
}

Result<void> ChangedNames::note(uint64_t id) {
  if (!matters() || id == 0) return {};
  MutexLock lock(mutex_);
  if (!matters_ || id > last_ || id <= up_to_ || changed_.contains(id)) return {};
  if (id > reached_) {
    if (changed_.size() >= RestoringMark::kMostChanged) return fail(EBUSY);
    changed_.insert(id);
  }
  auto noted = put();
  if (!noted) changed_.erase(id);
  return noted;
}

Result<void> ChangedNames::put() {
  const uint64_t reached = std::max(up_to_, reached_.load(std::memory_order_acquire));
  if (root_ != -1) {
    const std::vector<uint64_t> beyond(changed_.upper_bound(reached), changed_.end());
    if (auto put = put_restoring(root_, reached, beyond); !put) return put;
  }
  up_to_ = reached;
  changed_.erase(changed_.begin(), changed_.upper_bound(reached));
  return {};
}

Result<void> ChangedNames::end() {
  MutexLock lock(mutex_);
  if (!matters_) return {};
  if (root_ != -1)
    if (auto put = put_restored(root_); !put) return put;
  matters_ = false;
  changed_ = {};
  return {};
}

}  // namespace kvcachefs
