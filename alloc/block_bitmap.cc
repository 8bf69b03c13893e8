#include "alloc/block_bitmap.h"

#include <bit>

#include "base/check.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kWordBits = 64;

constexpr uint64_t bit_of(uint64_t number) {
  return uint64_t{1} << (number % kWordBits);
}

std::vector<uint64_t> level_of(uint64_t bits, BlockBitmap::Start start) {
  const uint64_t words = bits == 0 ? 1 : (bits + kWordBits - 1) / kWordBits;
  std::vector<uint64_t> level(words, start == BlockBitmap::Start::kFull && bits != 0 ? ~uint64_t{0} : 0);
  if (bits % kWordBits != 0) level.back() &= bit_of(bits) - 1;
  return level;
}

}  // namespace

BlockBitmap::BlockBitmap(uint64_t size, Start start) : size_(size) {
  levels_.push_back(level_of(size, start));
  while (levels_.back().size() > 1) {
    const uint64_t bits = levels_.back().size();
    levels_.push_back(level_of(bits, start));
  }
}

void BlockBitmap::set(uint64_t number) {
  KVCACHEFS_CHECK(number < size_);
  for (std::vector<uint64_t>& level : levels_) {
    uint64_t& word = level[number / kWordBits];
    const bool was_zero = word == 0;
    word |= bit_of(number);
    if (!was_zero) return;
    number /= kWordBits;
  }
}

void BlockBitmap::clear(uint64_t number) {
  KVCACHEFS_CHECK(number < size_);
  for (std::vector<uint64_t>& level : levels_) {
    uint64_t& word = level[number / kWordBits];
    word &= ~bit_of(number);
    if (word != 0) return;
    number /= kWordBits;
  }
}

std::optional<uint64_t> BlockBitmap::find_next(uint64_t from) const {
  for (size_t height = 0; height < levels_.size(); ++height) {
    const std::vector<uint64_t>& level = levels_[height];
    const uint64_t index = from / kWordBits;
    if (index >= level.size()) return std::nullopt;
    const uint64_t word = level[index] & ~(bit_of(from) - 1);
    if (word == 0) {
      // This word has no further member: the search goes on one level up, with the next word.
      from = index + 1;
      continue;
    }
    uint64_t found = index * kWordBits + static_cast<uint64_t>(std::countr_zero(word));
    while (height > 0) {
      --height;
      found = found * kWordBits + static_cast<uint64_t>(std::countr_zero(levels_[height][found]));
    }
    return found;
  }
  return std::nullopt;
}

std::optional<uint64_t> BlockBitmap::find_next_around(uint64_t from) const {
  const std::optional<uint64_t> found = find_next(from);
  return found || from == 0 ? found : find_next(0);
}

}  // namespace kvcachefs
