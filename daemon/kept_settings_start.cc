// What a start makes of the configuration and of what was kept.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/log.h"
#include "daemon/kept_settings.h"

namespace kvcachefs {

// Of a pool without a disk tier the settings of one mean nothing: the configuration may have had one when
// they were set.
Result<void> KeptSettings::put_values(PoolOptions& options, const KeptPool& kept, uint64_t memory_bytes) {
  for (const PoolSetting& setting : pool_settings()) {
    const auto value = kept.values.find(setting.key);
    if (value == kept.values.end() || (setting.needs_disk() && options.spill_path.empty())) continue;
    if (auto set = set_pool_option(options, setting.key, value->second, memory_bytes); !set)
      return fail(EINVAL, fmt::format("pool {}: {}", options.name, set.error().message));
  }
  return {};
}

Result<std::vector<PoolOptions>> KeptSettings::over(const Config& config, const KeptPools& kept,
                                                    uint64_t memory_bytes) {
  std::vector<PoolOptions> pools;
  for (const PoolOptions& configured : config.pools) {
    const auto its = kept.find(configured.name);
    PoolOptions options = configured;
    if (its != kept.end() && its->second.is_deleted) continue;
    if (its != kept.end())
      if (auto put = put_values(options, its->second, memory_bytes); !put) return pass(put);
    pools.push_back(std::move(options));
  }
  for (const auto& [name, its] : kept) {
    const bool is_configured =
        std::ranges::find(config.pools, name, &PoolOptions::name) != config.pools.end();
    if (!its.is_created || is_configured) continue;
    PoolOptions options;
    options.name = name;
    if (auto put = put_values(options, its, memory_bytes); !put) return pass(put);
    pools.push_back(std::move(options));
  }
  return pools;
}

void KeptSettings::tell(const Config& config, const KeptPools& kept) {
  for (const PoolOptions& pool : config.pools) {
    const auto its = kept.find(pool.name);
    if (its == kept.end()) continue;
    if (its->second.is_deleted)
      log_info("pool {}: was deleted: `kvcachefs create {}` makes it again", pool.name, pool.name);
    for (const auto& [key, value] : its->second.values)
      log_info("pool {}: {} is {}, as it was set: `kvcachefs reset {} {}` takes that back", pool.name, key,
               value, pool.name, key);
  }
  for (const auto& [name, its] : kept)
    for (const auto& [key, value] : its.unknown)
      log_warning("{}: {}unknown key '{}': it stays there, and has no effect", file_of(config),
                  name.empty() ? "" : fmt::format("pool {}: ", name), key);
}

Result<std::vector<PoolOptions>> KeptSettings::served(const Config& config, const PoolOrigins& origins,
                                                      uint64_t memory_bytes) {
  const std::string file = file_of(config);
  auto kept = read(file, memory_bytes);
  auto pools = kept ? over(config, *kept, memory_bytes) : pass(kept);
  if (!pools) return pools;
  Config whole = config;
  whole.pools = *pools;
  auto good = check_pools(whole, origins, memory_bytes);
  if (good) good = check_transport(whole, origins);
  if (good) return pools;
  if (kept->empty()) return pass(good);
  return fail(EINVAL,
              fmt::format("{} (with what {} has over the configuration)", good.error().message, file));
}

}  // namespace kvcachefs
