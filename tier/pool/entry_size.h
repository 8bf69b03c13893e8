// EntrySizeLearner learns how large a pool's next entry is likely to be: KV entries of one model are nearly
// all one size. SizesByName learns it for the files whose names differ in digits alone, because some engines
// store a small file beside each large one. Thread safety: any thread; no lock, one atomic store per closed
// entry and one relaxed load per remembered size for an answer. Failure: none.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvcachefs {

template <size_t kSizes>
class RecentSizes {
 public:
  // The answer is the second largest of the last kRemembered sizes, so a single large entry does not set it.
  // With 128, if one entry in ten is large, the answer is the large size in all but one of 10^5 cases.
  static constexpr size_t kRemembered = kSizes;

  // An entry of this size was closed by its writer.
  void closed(uint64_t size_bytes) {
    const uint64_t slot = next_slot_.fetch_add(1, std::memory_order_relaxed) % kRemembered;
    const uint64_t kept = std::min(size_bytes, UINT64_MAX - 1) + 1;
    slots_[slot].store(kept, std::memory_order_relaxed);
  }

  // 0 before any entry was closed; the only size after the first.
  uint64_t expected_bytes() const {
    std::array<uint64_t, 2> largest{};
    for (const auto& slot : slots_) {
      const uint64_t kept = slot.load(std::memory_order_relaxed);
      if (kept > largest[0])
        largest = {kept, largest[0]};
      else
        largest[1] = std::max(largest[1], kept);
    }
    const uint64_t answer = largest[1] != 0 ? largest[1] : largest[0];
    return answer != 0 ? answer - 1 : 0;
  }

  // The largest and the smallest size remembered; 0 before any entry was closed.
  uint64_t largest_bytes() const {
    uint64_t largest = 0;
    for (const auto& slot : slots_) largest = std::max(largest, slot.load(std::memory_order_relaxed));
    return largest != 0 ? largest - 1 : 0;
  }
  uint64_t smallest_bytes() const {
    uint64_t smallest = 0;
    for (const auto& slot : slots_)
      if (const uint64_t kept = slot.load(std::memory_order_relaxed); kept != 0)
        smallest = smallest == 0 ? kept : std::min(smallest, kept);
    return smallest != 0 ? smallest - 1 : 0;
  }

 private:
  // A slot holds a size plus one; 0 is an unused slot.
  std::array<std::atomic<uint64_t>, kRemembered> slots_{};
  std::atomic<uint64_t> next_slot_{0};
};

using EntrySizeLearner = RecentSizes<128>;

class SizesByName {
 public:
  // The class of a new file's name, of which hexadecimal digits do not count: they are a hash, a number or
  // the random part of a temporary name. Names of different classes may share a number. Never 0, which stands
  // for a name that is not known.
  static uint8_t class_of(std::string_view name);

  void closed(uint8_t name_class, uint64_t size_bytes) {
    if (name_class != 0) sizes_[name_class].closed(size_bytes);
  }
  // 0: nothing is known of the class.
  uint64_t expected_bytes(uint8_t name_class) const {
    return name_class != 0 ? sizes_[name_class].expected_bytes() : 0;
  }
  uint64_t smallest_bytes(uint8_t name_class) const {
    return name_class != 0 ? sizes_[name_class].smallest_bytes() : 0;
  }

 private:
  static constexpr size_t kClasses = 64;
  // Fewer than the pool's: an engine may give names of one form to entries of a new size.
  std::array<RecentSizes<32>, kClasses> sizes_;
};

}  // namespace kvcachefs
