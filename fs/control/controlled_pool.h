// A ControlledPool is a pool as its control files see it. Any thread. It shares the pool, so a removed pool
// lives until its last control file is closed. Fails as tier/pool/pool.h and tier/pool/pools.h do.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "fs/control/stats.h"
#include "tier/pool/pools.h"
#include "tier/pool/setting_origins.h"

namespace kvcachefs {

struct ControlledPool {
  const std::shared_ptr<Pool> pool;
  Pools& pools;
  const Authority authority = Authority::kOwner;  // on whose behalf writes act
  const std::string io_mode = {};
  const bool over_io_uring = false;
  // The open of the control file, which holds the leases that are requested through it.
  const Lifetimes::Holder holder = Lifetimes::kNobody;
  SettingOrigins* const origins = nullptr;               // null: only the values of settings are known
  const std::atomic<bool>* const queries_end = nullptr;  // true once queries must stop; null: they need not

  PoolReport report() const;
  // Puts one setting (tier/pool_options.h) of `wanted` into effect. EPERM: it is beyond what its authority
  // allows. `spill` attaches the disk tier that the options describe.
  Result<void> apply(std::string_view key, const PoolOptions& wanted) const;
};

// The reports of all pools, each with the pool's name.
std::vector<PoolReport> report_pools(Pools& pools, const std::string& io_mode);

}  // namespace kvcachefs
