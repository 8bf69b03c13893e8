// An AgedSpace is an allocator in the state of a disk in use: 1 TiB in units of 64 KiB, filled wholly, freed
// at random down to a part, then used for a while. One thread; nothing fails.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "alloc/extent_allocator.h"
#include "base/clock.h"

namespace kvcachefs::bench {

constexpr uint64_t kSpaceUnits = uint64_t{1} << 24;
// The sizes of entries in units; 0 means any of the others at random.
constexpr uint64_t kMixed = 0;
constexpr uint64_t kSizes[] = {1, 32, 512};

inline uint64_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

// A Held is the result of one allocation, without a vector if it is one extent, because 2^24 of them are
// held.
class Held {
 public:
  explicit Held(std::vector<Extent> extents) {
    if (extents.size() == 1) {
      one_ = extents.front();
    } else {
      more_ = std::make_unique<std::vector<Extent>>(std::move(extents));
    }
  }
  std::span<const Extent> extents() const {
    return more_ ? std::span(std::as_const(*more_)) : std::span(&one_, 1);
  }
  uint64_t units() const {
    uint64_t sum = 0;
    for (const Extent& extent : extents()) sum += extent.count;
    return sum;
  }

 private:
  Extent one_;
  std::unique_ptr<std::vector<Extent>> more_;
};

class AgedSpace {
 public:
  explicit AgedSpace(uint64_t size) : allocator_(kSpaceUnits), size_(size) {}

  // The call brings the space into the state of a disk in use: filled wholly, freed at random down to
  // `percent`, then used for a while.
  void age(uint64_t percent) {
    while (store()) continue;
    while (allocator_.used_units() * 100 > kSpaceUnits * percent) remove();
    for (size_t round = 0; round < std::min(2 * held_.size(), kAgeing); ++round) replace();
    extents_ = stored_ = 0;
  }

  // The result is the time of the two calls in ns. The space stays as full as it is.
  uint64_t replace() {
    Held& leaving = held_[next_random(random_) % held_.size()];
    const uint64_t wanted = leaving.units();
    const uint64_t began_ns = now_ns();
    auto got = allocator_.allocate(wanted);
    if (got) allocator_.free(leaving.extents());
    const uint64_t took_ns = now_ns() - began_ns;
    if (got) leaving = hold(std::move(*got));
    return took_ns;
  }

  double extents_per_entry() const {
    return static_cast<double>(extents_) / static_cast<double>(std::max(uint64_t{1}, stored_));
  }

  const ExtentAllocator& allocator() const { return allocator_; }

 private:
  static constexpr size_t kAgeing = 1'000'000;

  bool store() {
    auto got =
        allocator_.allocate(size_ == kMixed ? kSizes[next_random(random_) % std::size(kSizes)] : size_);
    if (got) held_.push_back(hold(std::move(*got)));
    return got.has_value();
  }

  void remove() {
    std::swap(held_[next_random(random_) % held_.size()], held_.back());
    allocator_.free(held_.back().extents());
    held_.pop_back();
  }

  Held hold(std::vector<Extent> extents) {
    extents_ += extents.size();
    ++stored_;
    return Held(std::move(extents));
  }

  ExtentAllocator allocator_;
  const uint64_t size_;
  uint64_t random_ = 1;
  uint64_t extents_ = 0;
  uint64_t stored_ = 0;
  std::vector<Held> held_;
};

}  // namespace kvcachefs::bench
