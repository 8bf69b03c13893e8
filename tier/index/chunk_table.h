// A ChunkTable has the numbers of blocks in buckets by a chunk of their hashes, and beside each number 32
// other bits of the hash, which tell most candidates from those that are near. What a search reads of a
// bucket is as a rule one or two lines of the processor's cache, because each costs it more than all that it
// does with what is in it. Not thread safe, as the SimilarIndex that has it. Failure: none but running out of
// memory, which stops the process.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvcachefs {

class ChunkTable {
 public:
  static constexpr size_t kSlots = 15;  // of a line

  // The last word is the number of the bucket's next line; 0: it is the last. All lines but the first, whose
  // number is the bucket's, are full.
  struct alignas(64) Line {
    std::array<uint32_t, kSlots + 1> words;
    uint32_t next() const { return words[kSlots]; }
  };

  explicit ChunkTable(size_t buckets) : lines_(buckets), blocks_(buckets) {}

  size_t size_of(size_t bucket) const { return blocks_[bucket].words[kSlots]; }
  void put(size_t bucket, uint32_t bits, uint32_t block);
  // The block is in the bucket.
  void drop(size_t bucket, uint32_t block);

  const Line& line(size_t number) const { return lines_[number]; }
  uint32_t block_in(size_t line, size_t slot) const { return blocks_[line].words[slot]; }
  // How many slots of a line of the bucket are taken.
  size_t taken_in(size_t line, size_t bucket) const {
    return line != bucket ? kSlots : size_of(bucket) == 0 ? 0 : (size_of(bucket) - 1) % kSlots + 1;
  }
  // Whether any slot of the line may have bits that differ from these in at most so many.
  static bool may_be_near(const Line& line, uint32_t bits, uint32_t most_distance);

  uint64_t memory_bytes() const { return lines_.capacity() * 2 * sizeof(Line); }

 private:
  uint32_t take_line();

  std::vector<Line> lines_;   // the buckets' first, then the others
  std::vector<Line> blocks_;  // the numbers, slot by slot; the last word of a bucket's first is its size
  uint32_t free_line_ = 0;    // the others that are free are linked by their last word
};

}  // namespace kvcachefs
