#include "fs/control/pool_adapter.h"

#include <fmt/format.h>

#include <cerrno>

namespace kvcachefs {

PoolReport PoolAdapter::report() {
  const PoolUsage usage = pool_->insight().usage();
  return make_pool_report(
      pool_->options(), usage, pool_->counters(), pool_->capacity().expected_entry_bytes(),
      pool_->insight().numa_survey().known(usage.entries), pool_->insight().spill_usage(), io_mode_);
}

Result<void> PoolAdapter::apply(std::string_view key, const PoolOptions& wanted) {
  if (key == "size") return pools_.resize(*pool_, wanted.size_bytes, authority_);
  if (key == "size_max") return pools_.set_size_max(*pool_, wanted.size_max_bytes);
  if (key == "policy") return pool_->settings().set_policy(wanted.policy);
  if (key == "watermarks") return pool_->settings().set_watermarks(wanted.watermarks);
  if (key == "entry_size") return pool_->settings().set_entry_size(wanted.entry_size_bytes);
  if (key == "pinned_max") return pool_->settings().set_pinned_max(wanted.pinned_max_percent, authority_);
  if (key == "spill") return pools_.set_spill(pool_, wanted);
  if (key == "durability") return pool_->settings().set_durability(durability_of(wanted));
  if (key == "admission") return pool_->settings().set_admission(wanted.admission);
  if (key == "prefetch") return pool_->settings().set_auto_prefetch(wanted.prefetch);
  return fail(EOPNOTSUPP, fmt::format("pool {}: {} cannot be changed here", pool_->name(), key));
}

std::vector<PoolReport> report_pools(Pools& pools, const std::string& io_mode) {
  std::vector<PoolReport> reports;
  for (std::shared_ptr<Pool>& pool : pools.list()) {
    reports.push_back(PoolAdapter(std::move(pool), pools, Authority::kOwner, io_mode, false).report());
  }
  return reports;
}

}  // namespace kvcachefs
