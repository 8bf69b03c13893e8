#include "fs/control/pool_adapter.h"

#include <fmt/format.h>

#include <cerrno>

namespace kvcachefs {

PoolReport PoolAdapter::report() {
  return make_pool_report(pool_->options(), pool_->usage(), pool_->counters(), pool_->expected_entry_bytes(),
                          pool_->recent_numa_usage(), SpillUsage{}, io_mode_);
}

std::unexpected<Error> PoolAdapter::no_disk_tier() const {
  return fail(EOPNOTSUPP, fmt::format("pool {} has no disk tier", pool_->name()));
}

Result<void> PoolAdapter::set_spill(const PoolOptions& wanted) {
  if (over_io_uring_) {
    return fail(EOPNOTSUPP, fmt::format("pool {}: spill={} would block an open over io_uring", pool_->name(),
                                        wanted.spill_path));
  }
  for (const std::shared_ptr<Pool>& other : pools_.list()) {
    if (other == pool_) continue;
    if (Result<void> apart = check_spills_apart(wanted, other->options()); !apart) {
      return fail(EBUSY, fmt::format("pool {}: {}", pool_->name(), apart.error().message));
    }
  }
  return no_disk_tier();
}

Result<void> PoolAdapter::set_durability(Durability) {
  return no_disk_tier();
}

Result<void> PoolAdapter::set_admission(Admission) {
  return no_disk_tier();
}

Result<void> PoolAdapter::set_auto_prefetch(bool) {
  return no_disk_tier();
}

Result<void> PoolAdapter::prefetch(std::span<const PrefetchOrder>) {
  return no_disk_tier();
}

PrefetchProgress PoolAdapter::prefetch_progress() {
  return {};
}

Result<void> PoolAdapter::start_scrub(uint64_t) {
  return no_disk_tier();
}

Result<void> PoolAdapter::stop_scrub() {
  return no_disk_tier();
}

ScrubProgress PoolAdapter::scrub_progress() {
  return {};
}

std::vector<PoolReport> report_pools(Pools& pools, const std::string& io_mode) {
  std::vector<PoolReport> reports;
  for (std::shared_ptr<Pool>& pool : pools.list()) {
    reports.push_back(PoolAdapter(std::move(pool), pools, io_mode, false).report());
  }
  return reports;
}

}  // namespace kvcachefs
