// AdmissionFilter decides whether content may cost a disk write, because flash wears: all content, content
// that was opened again after it was stored, or content that was used twice of late. The third kind remembers
// keys after their entries are gone, so hash names and not inodes: then it sees that discarded content is
// stored again. Thread safety: any thread; only set_kind() takes a lock, and counts of concurrent uses are
// not exact. Failure: none.
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

// UseSketch estimates how often each key was used of late: a count-min sketch of 4-bit counters in two
// generations. Uses are counted in the younger generation, which becomes the older one after `window` uses.
// So a count covers the last one to two windows and is never too low below the counters' maximum of 15 each;
// by chance it is too high for at most one key in 40.
class UseSketch {
 public:
  // `window` is a power of two. The sketch takes 16 bytes per use of the window: 4 MiB for 2^18.
  explicit UseSketch(uint64_t window);

  void seen(uint64_t key_hash);
  uint32_t uses(uint64_t key_hash) const;

 private:
  static constexpr unsigned kRows = 4;
  // Counters of one row: three in five are 0 at the end of the second window.
  static constexpr uint64_t kCountersPerUse = 4;
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

  // `opens_since_stored` does not count the open that stored the entry.
  bool admit(uint64_t key_hash, uint32_t opens_since_stored) const;
  // The pool calls this for every store and every open.
  void seen(uint64_t key_hash);

  Admission kind() const { return kind_.load(std::memory_order_relaxed); }
  void set_kind(Admission kind) EXCLUDES(mutex_);

 private:
  const uint64_t window_;
  std::atomic<Admission> kind_;
  // The sketch is made when kTinyLfu is first set, and kept; other threads find it through sketch_.
  Mutex mutex_;
  std::unique_ptr<UseSketch> owned_sketch_ GUARDED_BY(mutex_);
  std::atomic<UseSketch*> sketch_{nullptr};
};

}  // namespace kvcachefs
