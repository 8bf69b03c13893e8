// A set of numbers below a fixed size, kept as a bitmap with 64-ary summaries above it: every level has a bit
// for each word of the level below that is not zero. So each operation touches one word on each level, four
// words for 2^24 numbers. Thread safety: none; the owner locks. Failure: none; a number beyond the size is a
// programmer's error and stops the process.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace kvcachefs {

class BlockBitmap {
 public:
  enum class Start : uint8_t { kEmpty, kFull };

  explicit BlockBitmap(uint64_t size, Start start = Start::kEmpty);

  void set(uint64_t number);
  void clear(uint64_t number);
  // The first member at or after `from`. `from` may be beyond the size; the answer is then nothing.
  std::optional<uint64_t> find_next(uint64_t from) const;
  // The same, but the search goes on from 0 if there is no member up to the end.
  std::optional<uint64_t> find_next_around(uint64_t from) const;

 private:
  uint64_t size_;
  // The numbers themselves come first, the level of one word last.
  std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace kvcachefs
