// What every part of a pool works on: the pool's memory and entries, and what is around it. A part derives
// from it; what it refers to outlives the part. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "alloc/memory_arena.h"
#include "tier/counters.h"
#include "tier/entries/entries.h"
#include "tier/pool/surroundings.h"

namespace kvcachefs {

class PoolPart {
 public:
  PoolPart(uint16_t number, const std::string& name, const PoolSurroundings& surroundings, MemoryArena& arena,
           Entries& entries, PoolCounters& counters)
      : number_(number),
        name_(name),
        surroundings_(surroundings),
        arena_(arena),
        entries_(entries),
        counters_(counters) {}

 protected:
  uint64_t root_ino() const { return arena_.tree().ino; }
  bool is_supervised() const { return surroundings_.is_supervised(); }

  const uint16_t number_;
  const std::string& name_;
  const PoolSurroundings& surroundings_;
  MemoryArena& arena_;
  Entries& entries_;
  PoolCounters& counters_;
};

}  // namespace kvcachefs
