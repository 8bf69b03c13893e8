// A ControlledPool is what the control files need of a pool: fs/control/pool_adapter.h gives a real one,
// tests give another.
// Thread safety and failure: as tier/pool/pool.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/control/stats.h"
#include "tier/disk/spill_orders.h"
#include "tier/pool/pool.h"
#include "tier/pool_options.h"

namespace kvcachefs {

class ControlledPool {
 public:
  virtual ~ControlledPool() = default;

  virtual Authority authority() = 0;  // on whose behalf writes act
  virtual PoolOptions options() = 0;
  virtual PoolReport report() = 0;
  virtual uint64_t learned_entry_bytes() = 0;
  virtual std::vector<NodeUsage> numa_usage() = 0;
  virtual EvictResult last_evict() = 0;
  virtual size_t listing_shards() = 0;
  virtual std::vector<EntryListing> list_entries(size_t shard) = 0;
  // The memory that a size in percent refers to.
  virtual uint64_t memory_bytes() = 0;

  // Puts one setting (tier/pool_options.h) of `wanted` into effect. EPERM: it is beyond what its authority
  // allows. `spill` attaches the disk tier that the options describe or, if only the size differs, resizes
  // the present one.
  virtual Result<void> apply(std::string_view key, const PoolOptions& wanted) = 0;
  virtual EvictResult evict_now(EvictOrder order) = 0;

  // The disk tier. Without one all but the two functions that report progress fail with EOPNOTSUPP.
  virtual Result<void> prefetch(std::span<const PrefetchOrder> orders) = 0;  // queues them
  virtual PrefetchProgress prefetch_progress() = 0;
  virtual Result<void> start_scrub(uint64_t rate_bytes_per_s) = 0;  // EBUSY if one runs
  virtual Result<void> stop_scrub() = 0;
  virtual ScrubProgress scrub_progress() = 0;
};

}  // namespace kvcachefs
