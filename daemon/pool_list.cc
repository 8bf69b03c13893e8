#include "daemon/pool_list.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/key_value.h"

namespace kvcachefs {

// Each pool is a line `pool NUMBER NAME`, then a line `KEY VALUE` for each option that is set.
std::string format_pool_list(const Pools& pools) {
  std::string text;
  for (const auto& pool : pools.all()) {
    PoolOptions options = pool->settings().options();
    if (pool->retired()) options.spill_path.clear();  // other pools may use its disk
    text += fmt::format("pool {} {}\n", pool->number(), pool->name());
    for (const PoolSetting& setting : pool_settings())
      if (const std::string value = setting.get(options); !value.empty())
        text += fmt::format("{} {}\n", setting.key, value);
  }
  return text;
}

Result<std::vector<ListedPool>> parse_pool_list(std::string_view text, uint64_t memory_bytes) {
  std::vector<ListedPool> result;
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    std::string_view value = line;
    const std::string_view key = take_part(value, ' ');
    const bool is_pool = key == "pool";
    const auto number = is_pool ? number_in<uint16_t>(take_part(value, ' ')) : std::nullopt;
    if (is_pool ? value.empty() || number.value_or(0) == 0 : result.empty() || !line.contains(' '))
      return fail(EINVAL, fmt::format("the list of pools has a line that is none: {}", line));
    if (is_pool) {
      ListedPool& pool = result.emplace_back();
      pool.number = *number;
      pool.options.name = value;
    } else if (auto set = set_pool_option(result.back().options, key, value, memory_bytes); !set) {
      return pass(set);
    }
  }
  return result;
}

std::vector<std::string> names_without_disk(const Pools& pools) {
  std::vector<std::string> names;
  for (const auto& pool : pools.list())
    if (pool->disk().away() != nullptr) names.push_back(pool->name());
  return names;
}

}  // namespace kvcachefs
