// A PoolAdapter is a real pool behind its control files. Any thread. It shares the pool, so a removed pool
// lives until its last control file is closed. Fails as tier/pool/pool.h and tier/pool/pools.h do.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "fs/control/controlled_pool.h"
#include "tier/pool/pool.h"
#include "tier/pool/pools.h"

namespace kvcachefs {

class PoolAdapter final : public ControlledPool {
 public:
  PoolAdapter(std::shared_ptr<Pool> pool, Pools& pools, Authority authority, std::string io_mode,
              bool over_io_uring)
      : pool_(std::move(pool)),
        pools_(pools),
        authority_(authority),
        io_mode_(std::move(io_mode)),
        over_io_uring_(over_io_uring) {}

  Authority authority() override { return authority_; }
  PoolOptions options() override { return pool_->options(); }
  PoolReport report() override;
  uint64_t learned_entry_bytes() override { return pool_->capacity().learned_entry_bytes(); }
  std::vector<NodeUsage> numa_usage() override { return pool_->numa_survey().recent(); }
  EvictResult last_evict() override { return pool_->last_evict(); }
  size_t listing_shards() override { return Pool::kListingShards; }
  std::vector<EntryListing> list_entries(size_t shard) override { return pool_->list_entries(shard); }
  uint64_t memory_bytes() override { return pools_.memory_bytes(); }

  Result<void> set_size(uint64_t size_bytes) override {
    return pools_.resize(*pool_, size_bytes, authority_);
  }
  Result<void> set_size_max(uint64_t size_max_bytes) override {
    return pools_.set_size_max(*pool_, size_max_bytes);
  }
  Result<void> set_policy(std::string_view name) override { return pool_->set_policy(name); }
  Result<void> set_watermarks(Watermarks watermarks) override { return pool_->set_watermarks(watermarks); }
  Result<void> set_entry_size(uint64_t entry_size_bytes) override {
    return pool_->set_entry_size(entry_size_bytes);
  }
  Result<void> set_pinned_max(unsigned percent) override {
    return pool_->set_pinned_max(percent, authority_);
  }
  EvictResult evict_now(EvictOrder order) override {
    // Over io_uring this thread answers all requests of its processor, so an order that waits would hold up
    // all callers there.
    order.patient = !over_io_uring_;
    return pool_->evict_now(order);
  }

  Result<void> set_spill(const PoolOptions& wanted) override;
  Result<void> set_durability(Durability durability) override;
  Result<void> set_admission(Admission admission) override;
  Result<void> set_auto_prefetch(bool on) override;
  Result<void> prefetch(std::span<const PrefetchOrder> orders) override;
  PrefetchProgress prefetch_progress() override;
  Result<void> start_scrub(uint64_t rate_bytes_per_s) override;
  Result<void> stop_scrub() override;
  ScrubProgress scrub_progress() override;

 private:
  const std::shared_ptr<Pool> pool_;
  Pools& pools_;
  const Authority authority_;
  const std::string io_mode_;
  const bool over_io_uring_;
};

// The reports of all pools, each with the pool's name.
std::vector<PoolReport> report_pools(Pools& pools, const std::string& io_mode);

}  // namespace kvcachefs
