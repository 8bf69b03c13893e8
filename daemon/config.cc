#include "daemon/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/size.h"
#include "tier/disk/spill_orders.h"

namespace kvcachefs {
namespace {

constexpr unsigned kFewProcessors = 4;
constexpr unsigned kUsualPollUs = 20;  // about the time that it takes to wake a thread

std::string origin_of(const PoolOrigins& origins, std::string_view name) {
  const auto found = origins.find(name);
  return found == origins.end() ? "--pool" : found->second;
}

Result<void> check_disks(const std::vector<PoolOptions>& pools, const PoolOptions& pool) {
  if (Result<void> good = check_spill_options(pool); !good) return good;
  for (const PoolOptions& earlier : pools) {
    if (&earlier == &pool) break;
    if (Result<void> apart = check_spills_apart(pool, earlier); !apart) return apart;
  }
  return {};
}

}  // namespace

Result<void> DaemonSetting::set(Config& config, std::optional<int64_t> to) const {
  if (!to || *to < 0 || *to > maximum)
    return fail(EINVAL,
                is_flag() ? "is not true or false" : fmt::format("is not a number from 0 to {}", maximum));
  std::visit([&](auto its) { config.*its = static_cast<unsigned>(*to); }, member);
  return {};
}

std::string DaemonSetting::text(const Config& config) const {
  if (is_flag()) return config.*std::get<0>(member) ? "true" : "false";
  const auto number = std::visit([&](auto its) { return std::optional<unsigned>(config.*its); }, member);
  return number ? std::to_string(*number) : "";
}

const DaemonSetting* find_daemon_setting(std::string_view key) {
  const auto* const found = std::ranges::find(kDaemonSettings, key, &DaemonSetting::key);
  return found == std::end(kDaemonSettings) ? nullptr : found;
}

unsigned default_poll_us(unsigned processors) {
  return processors > kFewProcessors ? kUsualPollUs : 0;
}

Result<void> check_pools(const std::vector<PoolOptions>& pools, const PoolOrigins& origins,
                         uint64_t memory_bytes) {
  uint64_t left_bytes = memory_bytes;
  for (const PoolOptions& pool : pools) {
    const std::string origin = origin_of(origins, pool.name);
    if (pool.entry_size_bytes > pool.size_bytes) {
      return fail(EINVAL,
                  fmt::format("{}: pool {}: entry_size {} is beyond the pool's size {}", origin, pool.name,
                              format_size_exact(pool.entry_size_bytes), format_size_exact(pool.size_bytes)));
    }
    if (pool.size_bytes > left_bytes) {
      return fail(EINVAL, fmt::format("{}: pool {}: size {} is beyond the memory: {} of {} are left", origin,
                                      pool.name, format_size_exact(pool.size_bytes), format_size(left_bytes),
                                      format_size(memory_bytes)));
    }
    left_bytes -= pool.size_bytes;
    Result<void> good = check_size_max(pool);
    if (good) good = check_disks(pools, pool);
    if (!good) return fail(EINVAL, fmt::format("{}: pool {}: {}", origin, pool.name, good.error().message));
  }
  return {};
}

Result<void> check_transport(const Config& config, const PoolOrigins& origins) {
  if (!config.io_uring) return {};
  for (const PoolOptions& pool : config.pools) {
    if (pool.spill_path.empty()) continue;
    return fail(EINVAL, fmt::format("{}: pool {}: spill={} would block an open over io_uring (leave out "
                                    "spill or io_uring)",
                                    origin_of(origins, pool.name), pool.name, pool.spill_path));
  }
  return {};
}

}  // namespace kvcachefs
