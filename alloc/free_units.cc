#include "alloc/free_units.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/check.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kWordBits = RunClasses::kWordBits;
constexpr uint64_t kAll = ~uint64_t{0};

// A mask of `count` bits (1..64) of a word, from bit `first` on.
constexpr uint64_t mask_of(uint64_t first, uint64_t count) {
  return (kAll >> (kWordBits - count)) << first;
}

// Bit i is set where a run of `length` (1..64) begins at i.
uint64_t starts_of_runs(uint64_t word, uint64_t length) {
  uint64_t have = 1;
  while (have < length && word != 0) {
    const uint64_t step = std::min(have, length - have);
    word &= word >> step;
    have += step;
  }
  return word;
}

// The class of a word, which must not be 0.
unsigned class_of(uint64_t word) {
  if (word == kAll) return RunClasses::kClasses - 1;
  unsigned result = 0;
  for (unsigned step = 1; step < kWordBits / 2; step *= 2) {
    word &= word >> step;
    if (word == 0) return result;
    ++result;
  }
  return result;
}

Extent longer(const Extent& a, const Extent& b) {
  return a.count < b.count ? b : a;
}

// Calls visit(index, mask) for each word that the extent touches, until visit answers false. The answer is
// whether it never did.
template <class Visit>
bool for_each_word(const Extent& extent, Visit&& visit) {
  uint64_t unit = extent.start;
  while (unit < extent.end()) {
    const uint64_t first = unit % kWordBits;
    const uint64_t count = std::min(kWordBits - first, extent.end() - unit);
    if (!visit(unit / kWordBits, mask_of(first, count))) return false;
    unit += count;
  }
  return true;
}

template <size_t... Index>
std::array<BlockBitmap, sizeof...(Index)> empty_classes(uint64_t words, std::index_sequence<Index...>) {
  return {((void)Index, BlockBitmap(words))...};
}

}  // namespace

RunClasses::RunClasses(uint64_t bits)
    : words_((bits + kWordBits - 1) / kWordBits, kAll),
      classes_(empty_classes(words_.size(), std::make_index_sequence<kClasses>())) {
  classes_.back() = BlockBitmap(words_.size(), BlockBitmap::Start::kFull);
  if (bits % kWordBits != 0) change(words_.size() - 1, mask_of(0, bits % kWordBits));
}

void RunClasses::change(uint64_t index, uint64_t word) {
  const uint64_t before = std::exchange(words_[index], word);
  const unsigned class_before = before == 0 ? kClasses : class_of(before);
  const unsigned class_now = word == 0 ? kClasses : class_of(word);
  if (class_before == class_now) return;
  if (class_before != kClasses) classes_[class_before].clear(index);
  if (class_now != kClasses) classes_[class_now].set(index);
}

void RunClasses::change_bit(uint64_t bit, bool value) {
  const uint64_t mask = mask_of(bit % kWordBits, 1);
  const uint64_t word = words_[bit / kWordBits];
  change(bit / kWordBits, value ? word | mask : word & ~mask);
}

FreeUnits::FreeUnits(uint64_t units)
    : units_(units), count_(units), free_(units), whole_((units + kWordUnits - 1) / kWordUnits) {
  if (units % kWordUnits != 0) whole_.change_bit(units / kWordUnits, false);
}

bool FreeUnits::contains(const Extent& extent) const {
  return extent.start <= units_ && extent.count <= units_ - extent.start;
}

bool FreeUnits::all_free(const Extent& extent) const {
  KVCACHEFS_CHECK(contains(extent));
  return for_each_word(
      extent, [this](uint64_t index, uint64_t mask) { return (free_.words()[index] & mask) == mask; });
}

bool FreeUnits::all_taken(const Extent& extent) const {
  KVCACHEFS_CHECK(contains(extent));
  return for_each_word(extent,
                       [this](uint64_t index, uint64_t mask) { return (free_.words()[index] & mask) == 0; });
}

void FreeUnits::take(const Extent& extent) {
  KVCACHEFS_CHECK(contains(extent));
  for_each_word(extent, [this](uint64_t index, uint64_t mask) {
    change_word(index, free_.words()[index] & ~mask);
    return true;
  });
  count_ -= extent.count;
}

void FreeUnits::give(const Extent& extent) {
  KVCACHEFS_CHECK(contains(extent));
  for_each_word(extent, [this](uint64_t index, uint64_t mask) {
    change_word(index, free_.words()[index] | mask);
    return true;
  });
  count_ += extent.count;
}

void FreeUnits::change_word(uint64_t index, uint64_t value) {
  const bool was_whole = free_.words()[index] == kAll;
  free_.change(index, value);
  if (was_whole != (value == kAll)) whole_.change_bit(index, value == kAll);
}

uint64_t FreeUnits::run_before(uint64_t word, uint64_t at_most) const {
  uint64_t length = 0;
  while (word > 0 && length < at_most) {
    const auto free = static_cast<uint64_t>(std::countl_one(free_.words()[--word]));
    length += free;
    if (free < kWordUnits) break;
  }
  return length;
}

uint64_t FreeUnits::run_from(uint64_t unit, uint64_t at_most) const {
  const std::vector<uint64_t>& words = free_.words();
  const uint64_t first = unit % kWordUnits;
  uint64_t word = unit / kWordUnits;
  auto length = static_cast<uint64_t>(std::countr_one(words[word] >> first));
  if (first + length < kWordUnits) return length;
  while (++word < words.size() && length < at_most) {
    const auto free = static_cast<uint64_t>(std::countr_one(words[word]));
    length += free;
    if (free < kWordUnits) break;
  }
  return length;
}

Extent FreeUnits::run_around(uint64_t unit, uint64_t at_most) const {
  const uint64_t before = unit % kWordUnits == 0 ? run_before(unit / kWordUnits, at_most) : 0;
  const uint64_t from = before < at_most ? run_from(unit, at_most - before) : 0;
  return {.start = unit - before, .count = std::min(before + from, at_most)};
}

std::optional<uint64_t> FreeUnits::place_of_class(unsigned number, uint64_t from) const {
  const BlockBitmap& places =
      number < kWholeWord ? free_.of_class(number) : whole_.of_class(number - kWholeWord);
  return places.find_next_around(from);
}

Extent FreeUnits::run_at(unsigned number, uint64_t place, uint64_t wanted) const {
  const bool in_word = number < kWholeWord;
  const uint64_t bits = (in_word ? free_ : whole_).words()[place];
  const uint64_t bit_units = in_word ? 1 : kWordUnits;
  KVCACHEFS_CHECK(bits != 0 && wanted != 0);
  const auto run_of = [&](uint64_t bit) {
    return run_around(place * place_units(number) + bit * bit_units, wanted);
  };
  const uint64_t wanted_bits = (wanted + bit_units - 1) / bit_units;
  const uint64_t fitting = wanted_bits <= kWordBits ? starts_of_runs(bits, wanted_bits) : 0;
  if (fitting != 0) return run_of(static_cast<uint64_t>(std::countr_zero(fitting)));
  const uint64_t longest = starts_of_runs(bits, uint64_t{1} << class_of(bits));
  Extent best = run_of(static_cast<uint64_t>(std::countr_zero(longest)));
  // A run that crosses an end of the place may be longer than the longest run inside.
  const auto at_end = static_cast<uint64_t>(std::countl_one(bits));
  if (best.count < wanted && (bits & 1) != 0) best = longer(best, run_of(0));
  if (best.count < wanted && at_end != 0) best = longer(best, run_of(kWordBits - at_end));
  return best;
}

uint64_t FreeUnits::long_run() const {
  for (unsigned number = kClasses; number-- > 0;)
    if (const auto place = place_of_class(number, 0)) return run_at(number, *place, units_).count;
  return 0;
}

}  // namespace kvcachefs
