#include "fs/control/pool_adapter.h"

namespace kvcachefs {

PoolReport PoolAdapter::report() {
  const PoolUsage usage = pool_->usage();
  return make_pool_report(pool_->options(), usage, pool_->counters(), pool_->capacity().expected_entry_bytes(),
                          pool_->numa_survey().known(usage.entries), pool_->spill_usage(), io_mode_);
}

Result<void> PoolAdapter::set_spill(const PoolOptions& wanted) {
  return pools_.set_spill(pool_, wanted);
}

Result<void> PoolAdapter::set_durability(Durability durability) {
  return pool_->set_durability(durability);
}

Result<void> PoolAdapter::set_admission(Admission admission) {
  return pool_->set_admission(admission);
}

Result<void> PoolAdapter::set_auto_prefetch(bool on) {
  return pool_->set_auto_prefetch(on);
}

Result<void> PoolAdapter::prefetch(std::span<const PrefetchOrder> orders) {
  return pool_->prefetch(orders);
}

PrefetchProgress PoolAdapter::prefetch_progress() {
  return pool_->prefetch_progress();
}

Result<void> PoolAdapter::start_scrub(uint64_t rate_bytes_per_s) {
  return pool_->start_scrub(rate_bytes_per_s);
}

Result<void> PoolAdapter::stop_scrub() {
  return pool_->stop_scrub();
}

ScrubProgress PoolAdapter::scrub_progress() {
  return pool_->scrub_progress();
}

std::vector<PoolReport> report_pools(Pools& pools, const std::string& io_mode) {
  std::vector<PoolReport> reports;
  for (std::shared_ptr<Pool>& pool : pools.list()) {
    reports.push_back(PoolAdapter(std::move(pool), pools, Authority::kOwner, io_mode, false).report());
  }
  return reports;
}

}  // namespace kvcachefs
