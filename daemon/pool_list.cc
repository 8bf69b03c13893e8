#include "daemon/pool_list.h"

#include <fmt/format.h>

#include <cerrno>
#include <charconv>
#include <sstream>

namespace kvcachefs {

// Each pool is a line `pool NUMBER NAME`, then a line `KEY VALUE` for each option that is set.
std::string format_pool_list(const Pools& pools) {
  std::string text;
  for (const auto& pool : pools.all()) {
    PoolOptions options = pool->options();
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
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    const auto broken = [&] { return fail(EINVAL, "the list of pools has a line that is none: " + line); };
    if (space == std::string::npos) return broken();
    const std::string key = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    if (key == "pool") {
      ListedPool& pool = result.emplace_back();
      const auto [end, code] = std::from_chars(value.data(), value.data() + value.size(), pool.number);
      if (code != std::errc() || end == value.data() + value.size() || *end != ' ' || pool.number == 0)
        return broken();
      pool.options.name = value.substr(static_cast<size_t>(end - value.data()) + 1);
    } else {
      if (result.empty()) return broken();
      if (auto set = set_pool_option(result.back().options, key, value, memory_bytes); !set) return pass(set);
    }
  }
  return result;
}

std::vector<std::string> names_without_disk(const Pools& pools) {
  std::vector<std::string> names;
  for (const auto& pool : pools.list())
    if (pool->away() != nullptr) names.push_back(pool->name());
  return names;
}

}  // namespace kvcachefs
