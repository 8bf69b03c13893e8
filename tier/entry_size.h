// Learns how large a pool's next entry is likely to be: KV entries of one model are nearly all one size.
// Thread safety: any thread; no lock, one atomic store a closed entry and 128 relaxed loads an answer.
// Failure: none.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace kvcachefs {

class EntrySizeLearner {
 public:
  // Of so many sizes the second largest is answered: one freak does not set it, and where one entry in ten is
  // large, all but one in 10^5 of these windows know it.
  static constexpr size_t kRemembered = 128;

  // An entry of this size was closed by its writer.
  void closed(uint64_t size_bytes);

  // 0 before any entry was closed; the largest while there is only one.
  uint64_t expected_bytes() const;

  // Forgets all sizes.
  void reset();

 private:
  // Size plus one; 0 is an unused slot.
  std::array<std::atomic<uint64_t>, kRemembered> slots_{};
  std::atomic<uint64_t> next_slot_{0};
};

}  // namespace kvcachefs
