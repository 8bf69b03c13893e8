#include "daemon/config.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/size.h"
#include "tier/disk/spill_orders.h"

namespace kvcachefs {
namespace {

constexpr unsigned kFewProcessors = 4;
constexpr unsigned kUsualPollUs = 20;  // about the time that it takes to wake a thread

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += fmt::format("\\u{:04X}", byte);
    } else {
      out += c;
    }
  }
  return out + '"';
}

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
    if (Result<void> good = check_size_max(pool); !good) {
      return fail(EINVAL, fmt::format("{}: pool {}: {}", origin, pool.name, good.error().message));
    }
    if (Result<void> good = check_disks(pools, pool); !good) {
      return fail(EINVAL, fmt::format("{}: pool {}: {}", origin, pool.name, good.error().message));
    }
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

std::string format_config(const Config& config) {
  std::string out;
  if (!config.mountpoint.empty())
    out += fmt::format("mountpoint = {}\n", toml_string(config.mountpoint.native()));
  out += fmt::format("runtime_dir = {}\n", toml_string(config.runtime_dir.native()));
  out += fmt::format("io_uring = {}\n", config.io_uring);
  out += fmt::format("no_passthrough = {}\n", config.no_passthrough);
  out += fmt::format("no_page_cache = {}\n", config.no_page_cache);
  out += fmt::format("no_supervisor = {}\n", config.no_supervisor);
  if (config.poll_us) out += fmt::format("poll_us = {}\n", *config.poll_us);
  out += fmt::format("threads = {}\n", config.threads);
  out += fmt::format("hang_after = {}\n", config.hang_after_s);
  out += fmt::format("give_up_after = {}\n", config.give_up_after_s);
  for (const PoolOptions& pool : config.pools) {
    out += fmt::format("\n[pools.{}]\n", toml_string(pool.name));
    for (const PoolSetting& setting : pool_settings()) {
      const std::string value = setting.get(pool);
      if (!value.empty()) out += fmt::format("{} = {}\n", setting.key, toml_string(value));
    }
  }
  return out;
}

}  // namespace kvcachefs
