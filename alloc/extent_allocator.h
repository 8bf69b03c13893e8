// The allocator gives out the space of a disk tier in units (64 KiB by default). A request gets one extent if
// a search of a few places finds a run of its length, else a few large extents. A small request takes the
// shortest run that holds it; a large one continues where the last one ended, so a stream of large requests
// is written sequentially.
//
// Thread safety: any thread; one lock inside, held for less than a microsecond. Failure: allocate() answers
// nullopt and claim() false, both with nothing changed; freeing units that are not allocated is a
// programmer's error and stops the process.
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

  // All of the units or none, in no particular order; nullopt: fewer units are free.
  std::optional<std::vector<Extent>> allocate(uint64_t units) EXCLUDES(mutex_);
  void free(std::span<const Extent> extents) EXCLUDES(mutex_);
  // claim() takes an extent that a catalog says is in use. False: some of it is taken already or lies beyond
  // the end.
  bool claim(Extent extent) EXCLUDES(mutex_);

  uint64_t units() const { return units_; }
  uint64_t free_units() const EXCLUDES(mutex_);
  uint64_t used_units() const EXCLUDES(mutex_) { return units_ - free_units(); }
  // The length of a long free run: at least a quarter of the longest, whose length would take a search.
  uint64_t long_free_run() const EXCLUDES(mutex_);

 private:
  // One run of `wanted` units, or the longest run found.
  Extent next_run(uint64_t wanted) REQUIRES(mutex_);
  // The best of a few runs of that class. A count of 0: the class is empty.
  Extent best_of_class(unsigned number, uint64_t wanted) REQUIRES(mutex_);

  const uint64_t units_;
  mutable Mutex mutex_;
  FreeUnits free_ GUARDED_BY(mutex_);
  // Places, one for each class, where the next search goes on.
  std::array<uint64_t, FreeUnits::kClasses> cursors_ GUARDED_BY(mutex_){};
};

}  // namespace kvcachefs
