#include "daemon/pool_list.h"

#include <fmt/format.h>

#include <cerrno>

#include "base/key_value.h"

namespace kvcachefs {

namespace {

constexpr std::string_view kWritten = "written";
constexpr std::string_view kConfigured = "configured";

std::string lines_of(const PoolOptions& options) {
  std::string text;
  for (const PoolSetting& setting : pool_settings())
    if (const std::string value = setting.get(options); !value.empty())
      text += fmt::format("{} {}\n", setting.key, value);
  return text;
}

PoolOptions named(std::string_view name) {
  PoolOptions options;
  options.name = name;
  return options;
}

}  // namespace

// Each pool is a line `pool NUMBER NAME`, then a line `KEY VALUE` for each option that is set. A line
// `written` ends a pool whose options are all written down. Notes that differ from the pools come last, each
// with its own title. The first line `written`, before all pools, says that there are notes.
std::string format_pool_list(const Pools& pools, const PoolNotes& notes) {
  std::string text = fmt::format("{}\n", kWritten);
  OptionsByPool different = notes.written;
  for (const auto& pool : pools.all()) {
    PoolOptions options = pool->settings().options();
    if (pool->retired()) options.spill_path.clear();  // other pools may use its disk
    const std::string lines = lines_of(options);
    text += fmt::format("pool {} {}\n{}", pool->number(), pool->name(), lines);
    const auto its = pool->retired() ? different.end() : different.find(pool->name());
    if (its == different.end() || lines_of(its->second) != lines) continue;
    text += fmt::format("{}\n", kWritten);
    different.erase(its);
  }
  for (const auto& [name, options] : different)
    text += fmt::format("{} {}\n{}", kWritten, name, lines_of(options));
  for (const auto& [name, options] : notes.configured)
    text += fmt::format("{} {}\n{}", kConfigured, name, lines_of(options));
  return text;
}

Result<PoolList> parse_pool_list(std::string_view text, uint64_t memory_bytes) {
  PoolList result;
  PoolOptions* options = nullptr;  // to which the next line belongs
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    std::string_view value = line;
    const std::string_view key = take_part(value, ' ');
    const bool is_pool = key == "pool", is_note = key == kWritten || key == kConfigured;
    const auto number = is_pool ? number_in<uint16_t>(take_part(value, ' ')) : std::nullopt;
    const bool is_one = is_pool   ? !value.empty() && number.value_or(0) != 0
                        : is_note ? !value.empty() || key == kWritten
                                  : options != nullptr && line.contains(' ');
    if (!is_one) return fail(EINVAL, fmt::format("the list of pools has a line that is none: {}", line));
    if (is_note && !result.notes) result.notes.emplace();
    if (is_pool) {
      options = &result.pools.emplace_back(*number, named(value)).options;
    } else if (is_note && value.empty()) {
      if (options != nullptr) result.notes->written.insert_or_assign(options->name, *options);
    } else if (is_note) {
      OptionsByPool& notes = key == kWritten ? result.notes->written : result.notes->configured;
      options = &notes.insert_or_assign(std::string(value), named(value)).first->second;
    } else if (auto set = set_pool_option(*options, key, value, memory_bytes); !set) {
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
