// Whether content may cost a disk write (flash wears): all of it, what has been opened again since it was
// stored, or what was used twice of late. The last remembers keys that are gone: hash names, not inodes, for
// it to see that what was discarded is stored again. Thread safety: any thread, without a lock but while the
// kind is changed; counts of concurrent uses are not exact. Failure: none.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "tier/pool_options.h"

namespace kvcachefs {

// How often each key was used of late, as a count-min sketch of 4-bit counters in two generations: uses are
// counted in the younger one, which becomes the older one after `window` of them. So a count is of the last
// one to two windows, and never too low; that it is too high by chance befalls at most one key in 40.
class UseSketch {
 public:
  // A power of two. Takes 16 bytes a use: 4 MiB for 2^18.
  explicit UseSketch(uint64_t window);

  void seen(uint64_t key_hash);
  uint32_t uses(uint64_t key_hash) const;

 private:
  static constexpr unsigned kRows = 4;
  static constexpr uint64_t kCountersPerUse =
      4;  // in a row: three in five are 0 at the end of the second window
  static constexpr uint64_t kCountersPerWord = 16;
  using Generation = std::vector<std::atomic<uint64_t>>;

  struct Place {
    size_t word;
    unsigned shift;
  };
  std::array<Place, kRows> places_of(uint64_t key_hash) const;

  const uint64_t window_;
  std::array<Generation, 2> generations_;
  std::atomic<uint64_t> seen_{0};
};

class AdmissionFilter {
 public:
  static constexpr uint64_t kDefaultWindow = uint64_t{1} << 18;

  explicit AdmissionFilter(Admission kind, uint64_t window = kDefaultWindow);

  // `opens_since_stored`: without the one that stored it.
  bool admit(uint64_t key_hash, uint32_t opens_since_stored) const;
  // To be told of every store and open.
  void seen(uint64_t key_hash);

  Admission kind() const { return kind_.load(std::memory_order_relaxed); }
  void set_kind(Admission kind) EXCLUDES(mutex_);

 private:
  const uint64_t window_;
  std::atomic<Admission> kind_;
  // Made when it is needed first and kept; other threads find it through the pointer.
  Mutex mutex_;
  std::unique_ptr<UseSketch> owned_sketch_ GUARDED_BY(mutex_);
  std::atomic<UseSketch*> sketch_{nullptr};
};

}  // namespace kvcachefs
