// Gives out the space of a disk tier in units (64 KiB by default). What is asked for comes in one extent
// where a run of that length is found near, in a few large ones where not. Small requests go to the shortest
// runs that hold them, large ones go on where the last one ended: a stream of them is written sequentially.
// Thread safety: any thread; one lock inside, held for less than a microsecond but for largest_free_run.
// Failure: allocate answers nullopt and claim false, both with nothing changed; freeing what is not allocated
// is a programmer's error and stops the process.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "alloc/extent.h"
#include "alloc/free_units.h"
#include "base/mutex.h"

namespace kvcachefs {

class ExtentAllocator {
 public:
  explicit ExtentAllocator(uint64_t units);

  // All or nothing, in no particular order; nullopt: not so much is free.
  std::optional<std::vector<Extent>> allocate(uint64_t units) EXCLUDES(mutex_);
  void free(std::span<const Extent> extents) EXCLUDES(mutex_);
  // Takes what a catalog says is in use; false: some of it is taken already or beyond the end.
  bool claim(Extent extent) EXCLUDES(mutex_);

  uint64_t units() const { return units_; }
  uint64_t free_units() const EXCLUDES(mutex_);
  uint64_t used_units() const EXCLUDES(mutex_) { return units_ - free_units(); }
  // Looked for when it is asked for, and kept until something changes.
  uint64_t largest_free_run() const EXCLUDES(mutex_);

 private:
  // One run of `wanted` units, or the longest of those looked at.
  Extent next_run(uint64_t wanted) REQUIRES(mutex_);
  // The best of a few runs of that class; count 0: the class is empty.
  Extent best_of_class(unsigned number, uint64_t wanted) REQUIRES(mutex_);

  const uint64_t units_;
  mutable Mutex mutex_;
  FreeUnits free_ GUARDED_BY(mutex_);
  // The place where the search in a class goes on.
  std::array<uint64_t, FreeUnits::kClasses> cursors_ GUARDED_BY(mutex_){};
  mutable std::optional<uint64_t> largest_run_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
