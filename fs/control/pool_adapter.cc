#include "fs/control/pool_adapter.h"

namespace kvcachefs {

PoolReport PoolAdapter::report() {
  return make_pool_report(pool_->options(), pool_->usage(), pool_->counters(), pool_->expected_entry_bytes(),
                          pool_->recent_numa_usage(), io_mode_);
}

std::vector<PoolReport> report_pools(Pools& pools, const std::string& io_mode) {
  std::vector<PoolReport> reports;
  for (std::shared_ptr<Pool>& pool : pools.list()) {
    reports.push_back(PoolAdapter(std::move(pool), pools, io_mode, true).report());
  }
  return reports;
}

}  // namespace kvcachefs
