#include "daemon/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>

#include "base/size.h"

namespace kvcachefs {
namespace {

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

// All that it may turn out to be: whether the spill path is a device is seen when it is opened.
std::vector<std::string> catalogs_of(const PoolOptions& pool) {
  if (pool.spill_path.empty()) return {};
  if (!pool.catalog_path.empty()) return {pool.catalog_path};
  return {default_catalog_path(pool, false), default_catalog_path(pool, true)};
}

bool contains(const std::vector<std::string>& paths, const std::string& path) {
  return std::ranges::find(paths, path) != paths.end();
}

Result<void> check_disks_apart(const PoolOptions& pool, const PoolOptions& other) {
  if (pool.spill_path.empty() || other.spill_path.empty()) return {};
  if (pool.spill_path == other.spill_path) {
    return fail(EINVAL, fmt::format("spill={} is pool {}'s", pool.spill_path, other.name));
  }
  const std::vector<std::string> others = catalogs_of(other);
  if (contains(others, pool.spill_path)) {
    return fail(EINVAL, fmt::format("spill={} is pool {}'s catalog", pool.spill_path, other.name));
  }
  for (const std::string& catalog : catalogs_of(pool)) {
    if (catalog != other.spill_path && !contains(others, catalog)) continue;
    return fail(EINVAL, fmt::format("catalog={} is pool {}'s", catalog, other.name));
  }
  return {};
}

Result<void> check_disks(const std::vector<PoolOptions>& pools, const PoolOptions& pool) {
  if (Result<void> good = check_spill_options(pool); !good) return good;
  for (const PoolOptions& earlier : pools) {
    if (&earlier == &pool) break;
    if (Result<void> apart = check_disks_apart(pool, earlier); !apart) return apart;
  }
  return {};
}

}  // namespace

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
  out += fmt::format("poll_us = {}\n", config.poll_us);
  out += fmt::format("threads = {}\n", config.threads);
  for (const PoolOptions& pool : config.pools) {
    out += fmt::format("\n[pools.{}]\n", toml_string(pool.name));
    for (const std::string_view key : pool_option_keys()) {
      const std::string value = pool_option_text(pool, key);
      if (!value.empty()) out += fmt::format("{} = {}\n", key, toml_string(value));
    }
  }
  return out;
}

}  // namespace kvcachefs
