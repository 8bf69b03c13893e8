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
  std::vector<NodeUsage> numa_usage() override { return pool_->insight().numa_survey().recent(); }
  EvictResult last_evict() override { return pool_->evictor().last_evict(); }
  size_t listing_shards() override { return Insight::kListingShards; }
  std::vector<EntryListing> list_entries(size_t shard) override {
    return pool_->insight().list_entries(shard);
  }
  uint64_t memory_bytes() override { return pools_.memory_bytes(); }

  Result<void> apply(std::string_view key, const PoolOptions& wanted) override;
  EvictResult evict_now(EvictOrder order) override {
    // Over io_uring this thread answers all requests of its processor, so an order that waits would hold up
    // all callers there.
    order.patient = !over_io_uring_;
    return pool_->evictor().evict_now(order);
  }

  Result<void> prefetch(std::span<const PrefetchOrder> orders) override {
    return pool_->prefetcher().prefetch(orders);
  }
  PrefetchProgress prefetch_progress() override { return pool_->prefetcher().progress(); }
  Result<void> start_scrub(uint64_t rate_bytes_per_s) override {
    return pool_->disk_requests().start_scrub(rate_bytes_per_s);
  }
  Result<void> stop_scrub() override { return pool_->disk_requests().stop_scrub(); }
  ScrubProgress scrub_progress() override { return pool_->disk_requests().scrub_progress(); }

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
