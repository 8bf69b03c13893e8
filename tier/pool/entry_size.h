// EntrySizeLearner learns how large a pool's next entry is likely to be: KV entries of one model are nearly
// all one size. Thread safety: any thread; no lock, one atomic store per closed entry and 128 relaxed loads
// per answer. Failure: none.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvcachefs {

class EntrySizeLearner {
 public:
  // The answer is the second largest of the last kRemembered sizes, so a single large entry does not set it.
  // If one entry in ten is large, the answer is the large size in all but one of 10^5 cases.
  static constexpr size_t kRemembered = 128;

  // An entry of this size was closed by its writer.
  void closed(uint64_t size_bytes);

  // 0 before any entry was closed; the only size after the first.
  uint64_t expected_bytes() const;

  // The largest size remembered; 0 before any entry was closed.
  uint64_t largest_bytes() const;

 private:
  // A slot holds a size plus one; 0 is an unused slot.
  std::array<std::atomic<uint64_t>, kRemembered> slots_{};
  std::atomic<uint64_t> next_slot_{0};
};

}  // namespace kvcachefs
