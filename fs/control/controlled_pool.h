// What the control files need of a pool: fs/control/pool_adapter.h gives a real one, tests another.
// Thread safety and failure: as tier/pool.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "fs/control/stats.h"
#include "tier/pool.h"
#include "tier/pool_options.h"
#include "tier/spill_orders.h"

namespace kvcachefs {

class ControlledPool {
 public:
  virtual ~ControlledPool() = default;

  virtual Authority authority() = 0;  // on whose behalf it is written to
  virtual PoolOptions options() = 0;
  virtual PoolReport report() = 0;
  virtual uint64_t learned_entry_bytes() = 0;
  virtual std::vector<NodeUsage> numa_usage() = 0;
  virtual EvictResult last_evict() = 0;
  virtual size_t listing_shards() = 0;
  virtual std::vector<EntryListing> list_entries(size_t shard) = 0;
  // What a size in percent refers to.
  virtual uint64_t memory_bytes() = 0;

  virtual Result<void> set_size(uint64_t size_bytes) = 0;  // EPERM beyond what its authority allows
  virtual Result<void> set_size_max(uint64_t size_max_bytes) = 0;
  virtual Result<void> set_policy(std::string_view name) = 0;
  virtual Result<void> set_watermarks(Watermarks watermarks) = 0;
  virtual Result<void> set_entry_size(uint64_t entry_size_bytes) = 0;
  virtual Result<void> set_pinned_max(unsigned percent) = 0;
  virtual EvictResult evict_now(EvictOrder order) = 0;

  // The disk tier. But for set_spill and the two that tell of progress: EOPNOTSUPP without one.
  // Attaches the tier that the options describe or, if only the size is another, resizes the one there is.
  virtual Result<void> set_spill(const PoolOptions& wanted) = 0;
  virtual Result<void> set_durability(Durability durability) = 0;
  virtual Result<void> set_admission(Admission admission) = 0;
  virtual Result<void> set_auto_prefetch(bool on) = 0;
  virtual Result<void> prefetch(std::span<const PrefetchOrder> orders) = 0;  // queues them
  virtual PrefetchProgress prefetch_progress() = 0;
  virtual Result<void> start_scrub(uint64_t rate_bytes_per_s) = 0;  // EBUSY if one runs
  virtual Result<void> stop_scrub() = 0;
  virtual ScrubProgress scrub_progress() = 0;
};

}  // namespace kvcachefs
