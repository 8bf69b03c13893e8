#include "tier/index/chunk_table.h"

namespace kvcachefs {

void ChunkTable::put(size_t bucket, uint32_t bits, uint32_t block) {
  const size_t size = size_of(bucket);
  if (size > 0 && size % kSlots == 0) {
    const uint32_t full = take_line();
    lines_[full] = lines_[bucket];
    blocks_[full] = blocks_[bucket];
    lines_[bucket].words[kSlots] = full;
  }
  lines_[bucket].words[size % kSlots] = bits;
  blocks_[bucket].words[size % kSlots] = block;
  ++blocks_[bucket].words[kSlots];
}

void ChunkTable::drop(size_t bucket, uint32_t block) {
  size_t line = bucket;
  size_t slot = 0;
  while (blocks_[line].words[slot] != block) {
    if (++slot >= taken_in(line, bucket)) {
      line = lines_[line].next();
      slot = 0;
    }
  }
  const size_t last = taken_in(bucket, bucket) - 1;
  lines_[line].words[slot] = lines_[bucket].words[last];
  blocks_[line].words[slot] = blocks_[bucket].words[last];
  const uint32_t size = --blocks_[bucket].words[kSlots];
  if (const uint32_t full = lines_[bucket].next(); last == 0 && full != 0) {
    lines_[bucket] = lines_[full];
    blocks_[bucket] = blocks_[full];
    blocks_[bucket].words[kSlots] = size;
    lines_[full].words[kSlots] = free_line_;
    free_line_ = full;
  }
}

bool ChunkTable::may_be_near(const Line& line, uint32_t bits, uint32_t most_distance) {
  // By hand, because compilers make vectors of this and not of std::popcount, which without the instruction
  // is a call besides. The link is counted with the rest: what is near is looked at again.
  uint32_t near = 0;
  for (const uint32_t word : line.words) {
    uint32_t counts = word ^ bits;
    counts -= (counts >> 1) & 0x55555555;
    counts = (counts & 0x33333333) + ((counts >> 2) & 0x33333333);
    counts = (counts + (counts >> 4)) & 0x0f0f0f0f;
    counts += counts >> 8;
    counts += counts >> 16;
    near |= (counts & 0x3f) - most_distance - 1;  // below 0
  }
  return near >> 31 != 0;
}

uint32_t ChunkTable::take_line() {
  if (const uint32_t free = free_line_) {
    free_line_ = lines_[free].next();
    return free;
  }
  for (std::vector<Line>* all : {&lines_, &blocks_}) {
    if (all->size() == all->capacity()) all->reserve(all->size() + all->size() / 8);
    all->emplace_back();
  }
  return static_cast<uint32_t>(lines_.size() - 1);
}

}  // namespace kvcachefs
