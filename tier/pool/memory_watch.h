// MemoryWatch: a cache gives way. While less than the reserve is available on the host, pools get lower
// limits and shrink by eviction, each down to its floor; they grow back as memory becomes available. One
// thread calls step() again and again. Never fails: what cannot be evicted stays, and the log says so.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/host_memory.h"
#include "base/log_limit.h"
#include "tier/pool/pool_limit.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

struct MemoryRules {
  uint64_t reserve_bytes = 0;    // 0: the pools never give way
  unsigned floor_percent = 100;  // of its size, which a pool keeps
  bool exist() const { return reserve_bytes > 0 && floor_percent < 100; }
};

// What one pool has and could give.
struct Giver {
  uint64_t size_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t evictable_bytes = 0;  // of those used
  uint64_t floor_bytes = 0;
  uint64_t leaving_bytes = 0;  // what it has been asked for and still has
  uint64_t ceiling_bytes = PoolLimit::kNone;
  uint64_t given_bytes = 0;  // result: what it is asked for now

  uint64_t spare_bytes() const;
};

// Asks the givers for what the reserve lacks, each in proportion to what it could give. Answers what is
// lacking still.
uint64_t take_back(uint64_t lacking_bytes, std::span<Giver> givers);
// Raises the ceilings, so that all pools together may take this much more.
void give_back(uint64_t spare_bytes, std::span<Giver> givers);

class MemoryWatch {
 public:
  // What it refers to outlives it.
  MemoryWatch(Pools& pools, MemoryRules rules, const HostMemoryReader& reader)
      : pools_(pools), rules_(rules), reader_(reader) {}

  std::chrono::milliseconds step();  // how long until the next step

 private:
  using PoolList = std::vector<std::shared_ptr<Pool>>;
  std::chrono::milliseconds shrink(uint64_t available_bytes, const PoolList& pools, std::span<Giver> givers);
  std::chrono::milliseconds grow(uint64_t available_bytes, const PoolList& pools, std::span<Giver> givers);

  Pools& pools_;
  const MemoryRules rules_;
  const HostMemoryReader& reader_;
  bool gives_way_ = false;  // some pool has a limit below its size
  uint64_t last_used_bytes_ = 0;
  uint64_t progressed_ns_ = 0;  // when some of what leaves had left
  LogLimit began_;
  LogLimit vain_;
  LogLimit ended_;
};

}  // namespace kvcachefs
