// FreeUnits keeps one bit for each unit of a disk, set if the unit is free, and finds a run of a given
// length. Words of 64 units, and groups of 64 words, are in classes by the longest run inside them (1, 2, 4
// .. 4096 units and more). Finding a place of a class is next to O(1), whatever the disk's size and fill.
// Thread safety: none; the owner (ExtentAllocator) locks. Failure: none; units beyond the end are a
// programmer's error and stop the process.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "alloc/block_bitmap.h"
#include "alloc/extent.h"

namespace kvcachefs {

// A bitmap whose words are in classes: class c has the words with 2^c adjacent bits or more, but fewer than
// 2^(c+1).
class RunClasses {
 public:
  static constexpr uint64_t kWordBits = 64;
  static constexpr unsigned kClasses = 7;

  // All bits are set at first.
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
  // Class c has the words (c below 6) or groups of words whose own longest run has 2^c units or more, but
  // fewer than 2^(c+1).
  static constexpr unsigned kClasses = 13;

  // All units are free at first.
  explicit FreeUnits(uint64_t units);

  uint64_t count() const { return count_; }
  bool contains(const Extent& extent) const;
  bool all_free(const Extent& extent) const;
  bool all_taken(const Extent& extent) const;
  void take(const Extent& extent);
  void give(const Extent& extent);

  // The next place (a word or a group) of the class, searched from place `from` to the end and then from the
  // start.
  std::optional<uint64_t> place_of_class(unsigned number, uint64_t from) const;
  // The place of that class in which the unit lies.
  static uint64_t place_with(unsigned number, uint64_t unit) { return unit / place_units(number); }
  // The best run at a place of that class: a run of `wanted` units if there is one, else the longest. A run
  // may go on into the neighbouring words; its end is cut off so that it has at most `wanted` units.
  Extent run_at(unsigned number, uint64_t place, uint64_t wanted) const;
  // The length of a run at the first place of the highest class: a quarter of the longest run or more.
  uint64_t long_run() const;

 private:
  static constexpr uint64_t kWordUnits = RunClasses::kWordBits;
  // The first class of groups.
  static constexpr unsigned kWholeWord = RunClasses::kClasses - 1;
  static uint64_t place_units(unsigned number) {
    return number < kWholeWord ? kWordUnits : kWordUnits * kWordUnits;
  }

  void change_word(uint64_t index, uint64_t value);
  // The whole run around this unit, which must be the first of a run in its word, or begin a whole free word.
  // The run begins at most `at_most` units earlier.
  Extent run_around(uint64_t unit, uint64_t at_most) const;
  uint64_t run_before(uint64_t word, uint64_t at_most) const;
  uint64_t run_from(uint64_t unit, uint64_t at_most) const;

  uint64_t units_;
  uint64_t count_;
  RunClasses free_;
  // One bit for each word: set if all of the word's units are free.
  RunClasses whole_;
};

}  // namespace kvcachefs
