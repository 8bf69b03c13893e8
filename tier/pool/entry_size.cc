#include "tier/pool/entry_size.h"

#include <algorithm>

namespace kvcachefs {

void EntrySizeLearner::closed(uint64_t size_bytes) {
  const uint64_t slot = next_slot_.fetch_add(1, std::memory_order_relaxed) % kRemembered;
  const uint64_t kept = std::min(size_bytes, UINT64_MAX - 1) + 1;
  slots_[slot].store(kept, std::memory_order_relaxed);
}

uint64_t EntrySizeLearner::expected_bytes() const {
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

uint64_t EntrySizeLearner::largest_bytes() const {
  uint64_t largest = 0;
  for (const auto& slot : slots_) largest = std::max(largest, slot.load(std::memory_order_relaxed));
  return largest != 0 ? largest - 1 : 0;
}

}  // namespace kvcachefs
