// What every part of a pool works on: the pool's memory and entries, and what is around it. A part inherits
// it privately; what it refers to outlives the part. Any thread.
#pragma once

#include <cstdint>
#include <string>

#include "alloc/memory_arena.h"
#include "tier/counters.h"
#include "tier/entries/entries.h"
#include "tier/pool/capacity.h"
#include "tier/pool/name_limits.h"
#include "tier/pool/surroundings.h"

namespace kvcachefs {

struct PoolPart {
  const uint16_t number_;
  const std::string& name_;
  const PoolSurroundings& surroundings_;
  MemoryArena& arena_;
  Capacity& capacity_;
  Entries& entries_;
  PoolCounters& counters_;
  NameLimits& limits_;

  uint64_t root_ino() const { return arena_.tree().ino; }
  bool is_supervised() const { return surroundings_.is_supervised(); }
};

}  // namespace kvcachefs
