#include "fs/control/controlled_pool.h"

#include <fmt/format.h>

#include <cerrno>

namespace kvcachefs {

PoolReport ControlledPool::report() const {
  const PoolUsage usage = pool->insight().usage();
  return make_pool_report(
      pool->settings().options(), usage, pool->counters(), pool->capacity().expected_entry_bytes(),
      pool->insight().numa_survey().recent(usage.entries), pool->insight().spill_usage(), io_mode);
}

Result<void> ControlledPool::apply(std::string_view key, const PoolOptions& wanted) const {
  if (key == "size") return pools.resize(*pool, wanted.size_bytes, authority);
  if (key == "size_max") return pools.set_size_max(*pool, wanted.size_max_bytes);
  if (key == "policy") return pool->settings().set_policy(wanted.policy);
  if (key == "watermarks") return pool->settings().set_watermarks(wanted.watermarks);
  if (key == "entry_size") return pool->settings().set_entry_size(wanted.entry_size_bytes);
  if (key == "pinned_max") return pool->settings().set_pinned_max(wanted.pinned_max_percent, authority);
  if (key == "max_entries") return pool->settings().set_max_entries(wanted.max_entries);
  if (key == "max_directories") return pool->settings().set_max_directories(wanted.max_directories);
  if (key == "user_share") return pool->settings().set_user_share(wanted.user_share_percent);
  if (key == "max_xattr_bytes") return pool->settings().set_max_xattr_bytes(wanted.max_xattr_bytes);
  if (key == "max_xattrs") return pool->settings().set_max_xattrs(wanted.max_xattrs);
  if (key == "leaf_first") return pool->settings().set_leaf_first(wanted.leaf_first);
  if (key == "spill") return pools.set_spill(pool, wanted);
  if (key == "durability") return pool->settings().set_durability(durability_of(wanted));
  if (key == "admission") return pool->settings().set_admission(wanted.admission);
  if (key == "prefetch") return pool->settings().set_auto_prefetch(wanted.prefetch);
  return fail(EOPNOTSUPP, fmt::format("pool {}: {} cannot be changed here", pool->name(), key));
}

std::vector<PoolReport> report_pools(Pools& pools, const std::string& io_mode) {
  std::vector<PoolReport> reports;
  for (const std::shared_ptr<Pool>& pool : pools.list())
    reports.push_back(ControlledPool{.pool = pool, .pools = pools, .io_mode = io_mode}.report());
  return reports;
}

}  // namespace kvcachefs
