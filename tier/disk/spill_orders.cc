#include "tier/disk/spill_orders.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <ranges>
#include <vector>

#include "base/key_value.h"
#include "base/size.h"

namespace kvcachefs {
namespace {

// The settings that an order may have in lines of their own.
bool is_further(const PoolSetting& setting) {
  return setting.kind == PoolSetting::Kind::kDiskOrder;
}

Result<void> set_place(PoolOptions& options, std::string_view place) {
  if (place == "none") return set_pool_option(options, "spill", place, 0);
  const size_t blank = place.rfind(' ');
  const std::string_view last = blank == std::string_view::npos ? place : place.substr(blank + 1);
  const bool has_size = parse_size(last).has_value();
  const std::string_view path = has_size ? place.substr(0, place.size() - last.size()) : place;
  if (const size_t end = path.find_last_not_of(' '); end != std::string_view::npos) {
    Result<void> set = set_pool_option(options, "spill", path.substr(0, end + 1), 0);
    if (!set) return set;
    options.spill_size_bytes = 0;
  } else if (!has_size || options.spill_path.empty()) {
    return fail(EINVAL, fmt::format("spill: '{}' is not PATH SIZE", place));
  }
  return has_size ? set_pool_option(options, "spill_size", last, 0) : Result<void>{};
}

// Every path that the catalog may turn out to have: only opening the spill path shows whether it is a device.
std::vector<std::string> catalogs_of(const PoolOptions& pool) {
  if (pool.spill_path.empty()) return {};
  if (!pool.catalog_path.empty()) return {pool.catalog_path};
  return {default_catalog_path(pool, false), default_catalog_path(pool, true)};
}

bool contains(const std::vector<std::string>& paths, const std::string& path) {
  return std::ranges::find(paths, path) != paths.end();
}

}  // namespace

Result<void> set_spill_order(PoolOptions& options, std::string_view text) {
  PoolOptions changed = options;
  if (Result<void> set = set_place(changed, take_part(text, '\n')); !set) return set;
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    if (line.empty()) continue;
    const auto [key, value] = split_key_value(line);
    const PoolSetting* const setting = find_pool_setting(key);
    if (!value || setting == nullptr || !is_further(*setting)) {
      auto further =
          pool_settings() | std::views::filter(is_further) | std::views::transform(&PoolSetting::key);
      return fail(EINVAL, fmt::format("spill: '{}' is none of {}", line, fmt::join(further, "=, ")));
    }
    if (Result<void> set = set_pool_option(changed, key, *value, 0); !set) return set;
  }
  if (changed.spill_path.empty()) return set_pool_option(options, "spill", "none", 0);
  if (Result<void> good = check_spill_options(changed); !good) return good;
  options = std::move(changed);
  return {};
}

Result<void> check_spills_apart(const PoolOptions& pool, const PoolOptions& other) {
  if (pool.spill_path.empty() || other.spill_path.empty()) return {};
  if (pool.spill_path == other.spill_path)
    return fail(EINVAL, fmt::format("spill={} is pool {}'s", pool.spill_path, other.name));
  const std::vector<std::string> others = catalogs_of(other);
  if (contains(others, pool.spill_path))
    return fail(EINVAL, fmt::format("spill={} is pool {}'s catalog", pool.spill_path, other.name));
  for (const std::string& catalog : catalogs_of(pool)) {
    if (catalog != other.spill_path && !contains(others, catalog)) continue;
    return fail(EINVAL, fmt::format("catalog={} is pool {}'s", catalog, other.name));
  }
  return {};
}

std::string spill_place_text(const PoolOptions& options) {
  const std::string size = pool_option_text(options, "spill_size");
  return pool_option_text(options, "spill") + (size.empty() ? "" : " " + size);
}

std::string spill_order_text(const PoolOptions& options) {
  std::string text = spill_place_text(options);
  const PoolOptions defaults;
  for (const PoolSetting& setting : pool_settings() | std::views::filter(is_further)) {
    const std::string value = setting.get(options);
    if (value != setting.get(defaults)) text += fmt::format("\n{}={}", setting.key, value);
  }
  return text;
}

}  // namespace kvcachefs
