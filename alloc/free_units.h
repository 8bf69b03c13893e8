// Which units of a disk are free, one bit a unit, and where to find a run of a given length: words of 64
// units, and groups of 64 words, are in classes by the longest run inside of them (1, 2, 4 .. 4096 units and
// more). A place of a class is found in next to O(1), whatever the disk's size and fill. Thread safety: none;
// the owner (ExtentAllocator) locks. Failure: none; units beyond the end are a programmer's error and stop
// the process.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "alloc/block_bitmap.h"
#include "alloc/extent.h"

namespace kvcachefs {

// A bitmap whose words are in classes: class c has those with 2^c adjacent bits or more, but not 2^(c+1).
class RunClasses {
 public:
  static constexpr uint64_t kWordBits = 64;
  static constexpr unsigned kClasses = 7;

  // All bits are set.
  explicit RunClasses(uint64_t bits);

  const std::vector<uint64_t>& words() const { return words_; }
  void change(uint64_t index, uint64_t word);
  void change_bit(uint64_t bit, bool value);
  const BlockBitmap& of_class(unsigned number) const { return classes_[number]; }

 private:
  std::vector<uint64_t> words_;
  std::array<BlockBitmap, kClasses> classes_;
};

class FreeUnits {
 public:
  // Class c: a word (below 6) or a group of words with a run of 2^c units or more, but not 2^(c+1) by its
  // own.
  static constexpr unsigned kClasses = 13;

  // All are free.
  explicit FreeUnits(uint64_t units);

  uint64_t units() const { return units_; }
  uint64_t count() const { return count_; }
  bool contains(const Extent& extent) const;
  bool all_free(const Extent& extent) const;
  bool all_taken(const Extent& extent) const;
  void take(const Extent& extent);
  void give(const Extent& extent);

  // The next place (a word or a group) of the class, from that place on and around.
  std::optional<uint64_t> place_of_class(unsigned number, uint64_t from) const;
  // The place of that class that has the unit.
  static uint64_t place_with(unsigned number, uint64_t unit) { return unit / place_units(number); }
  // The best run at a place of that class: one that has `wanted` units if there is one, else the longest.
  // Runs go on into the neighbouring words; what exceeds `wanted` is cut off at the end.
  Extent run_at(unsigned number, uint64_t place, uint64_t wanted) const;
  // Looks only at places that may have it, which are many where much is free in pieces.
  uint64_t largest_run() const;

 private:
  static constexpr uint64_t kWordUnits = RunClasses::kWordBits;
  // The first class of groups.
  static constexpr unsigned kWholeWord = RunClasses::kClasses - 1;
  static uint64_t place_units(unsigned number) {
    return number < kWholeWord ? kWordUnits : kWordUnits * kWordUnits;
  }

  void change_word(uint64_t index, uint64_t value);
  // The run that this unit, the first of one in its word or of a whole word, is in; from `at_most` units
  // before on.
  Extent run_around(uint64_t unit, uint64_t at_most) const;
  uint64_t run_before(uint64_t word, uint64_t at_most) const;
  uint64_t run_from(uint64_t unit, uint64_t at_most) const;
  uint64_t largest_run_with_whole_words() const;
  uint64_t largest_run_of_class(unsigned number) const;

  uint64_t units_;
  uint64_t count_;
  RunClasses free_;
  // One bit a word: all of its units are free.
  RunClasses whole_;
};

}  // namespace kvcachefs
