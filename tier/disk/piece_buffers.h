// Buffers for the pieces of files that are not written to the disk from their own pages. One thread. A buffer
// is made at its first use, and none is given up.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "base/mapping.h"

namespace kvcachefs {

class PieceBuffers {
 public:
  static constexpr size_t kBytes = 1 << 20;
  static constexpr size_t kMost = 32;

  // take() answers a buffer's number; none: all are in use, or there is no memory for another.
  std::optional<size_t> take() {
    if (free_.empty() && buffers_.size() < kMost) {
      auto made = Mapping::of_memory(kBytes);
      if (!made) return std::nullopt;
      buffers_.push_back(std::move(*made));
      free_.push_back(buffers_.size() - 1);
    }
    if (free_.empty()) return std::nullopt;
    const size_t buffer = free_.back();
    free_.pop_back();
    return buffer;
  }
  void give_back(size_t buffer) { free_.push_back(buffer); }
  std::span<std::byte> memory(size_t buffer) { return buffers_[buffer].bytes(); }

 private:
  std::vector<Mapping> buffers_;
  std::vector<size_t> free_;
};

}  // namespace kvcachefs
