// ChangedNames tells a successor, by the mark on the pool's root (tier/catalog/copy_mark.h), which files of
// the catalog a restore has come past, and of which of the later ones clients have changed names: none of
// these may be brought back again. Any thread; one of them begins, goes on and ends. Failure: EBUSY where the
// mark has no room for more, or the errno of setxattr(2); then the change must not be made.
#pragma once

#include <atomic>
#include <cstdint>
#include <set>

#include "base/mutex.h"
#include "base/result.h"
#include "tier/catalog/copy_mark.h"

namespace kvcachefs {

class ChangedNames {
 public:
  // What is back has numbers up to `last`. `root` is -1 if no successor may come: nothing is marked then.
  void begin(int root, uint64_t last, const RestoringMark& mark) EXCLUDES(mutex_);
  bool matters() const { return matters_.load(std::memory_order_acquire); }
  // All up to the number are back; a note may come to the mark sooner than with mark_reached().
  void came_to(uint64_t id) { reached_.store(id, std::memory_order_release); }
  void mark_reached() EXCLUDES(mutex_);
  // The call precedes the change of a name of what has the number.
  Result<void> note(uint64_t id) EXCLUDES(mutex_);
  Result<void> end() EXCLUDES(mutex_);  // all are back

 private:
  Result<void> put() REQUIRES(mutex_);

  std::atomic<bool> matters_{false};
  std::atomic<uint64_t> reached_{0};
  Mutex mutex_;
  int root_ GUARDED_BY(mutex_) = -1;
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  uint64_t up_to_ GUARDED_BY(mutex_) = 0;
  std::set<uint64_t> changed_ GUARDED_BY(mutex_);  // beyond up_to_
};

}  // namespace kvcachefs
