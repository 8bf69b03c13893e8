#include "daemon/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <type_traits>

#include "base/key_value.h"
#include "base/size.h"
#include "base/sys_process.h"
#include "tier/blocks.h"
#include "tier/disk/spill_orders.h"

namespace kvcachefs {
namespace {

constexpr unsigned kFewProcessors = 4;
constexpr unsigned kReservedPercent = 5;
constexpr uint64_t kLeastReserveBytes = uint64_t{512} << 20;
constexpr uint64_t kLeastAmountBytes = uint64_t{1} << 20;  // `5` is meant as 5%, or as 5G
constexpr unsigned kUsualPollUs = 20;                      // about the time that it takes to wake a thread

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

Result<void> DaemonSetting::set(Config& config, std::string_view text, uint64_t memory_bytes) const {
  const auto percent = parse_percent(text, 0);
  if (const auto* amount = std::get_if<Amount>(&member)) {
    Result<uint64_t> size = parse_size(text);
    if (text.ends_with('%') && percent) size = percent_of(memory_bytes, *percent);
    if (!size) return fail(EINVAL, "is not a size, nor a percentage of the memory");
    if (*size > 0 && *size < kLeastAmountBytes) return fail(EINVAL, "is less than 1M and not 0");
    config.** amount = *size;
    return {};
  }
  if (const auto* share = std::get_if<Percent Config::*>(&member)) {
    if (!percent) return fail(EINVAL, "is not a percentage from 0 to 100");
    (config.**share).value = *percent;
    return {};
  }
  if (const auto* flag = std::get_if<bool Config::*>(&member)) {
    if (text != "true" && text != "false") return fail(EINVAL, "is not true or false");
    config.** flag = text == "true";
    return {};
  }
  if (const auto* choice = std::get_if<Switch>(&member)) {
    if (text != "on" && text != "off") return fail(EINVAL, "is not on or off");
    config.** choice = text == "on";
    return {};
  }
  if (const auto* group = std::get_if<GroupSetting>(&member)) {
    const std::optional<gid_t> number = sys::group_number(std::string(text));
    if (!number) return fail(EINVAL, "is no group");
    config.*group->member = *number;
    return {};
  }
  if (const auto* adjustment = std::get_if<Adjustment>(&member)) {
    const auto number = number_in<int>(text);
    const int limit = static_cast<int>(maximum);
    if (!number || *number > limit || *number < -limit)
      return fail(EINVAL, fmt::format("is not a number from -{} to {}", maximum, maximum));
    config.** adjustment = *number;
    return {};
  }
  const auto number = number_in<unsigned>(text);
  if (!number || *number > maximum) return fail(EINVAL, fmt::format("is not a number from 0 to {}", maximum));
  if (const auto* plain = std::get_if<unsigned Config::*>(&member)) config.** plain = *number;
  if (const auto* optional = std::get_if<std::optional<unsigned> Config::*>(&member))
    config.** optional = *number;
  return {};
}

std::string DaemonSetting::text(const Config& config) const {
  struct Texts {
    std::string operator()(bool flag) const { return flag ? "true" : "false"; }
    std::string operator()(unsigned number) const { return std::to_string(number); }
    std::string operator()(std::optional<bool> choice) const {
      return !choice ? "" : *choice ? "\"on\"" : "\"off\"";
    }
    std::string operator()(Percent share) const { return fmt::format("\"{}%\"", share.value); }
    std::string operator()(std::optional<unsigned> number) const {
      return number ? std::to_string(*number) : "";
    }
    std::string operator()(std::optional<int> number) const { return number ? std::to_string(*number) : ""; }
    std::string operator()(std::optional<uint64_t> bytes) const {
      return bytes ? fmt::format("\"{}\"", format_size_exact(*bytes)) : "";
    }
  };
  return std::visit(
      [&](auto its) {
        if constexpr (std::is_same_v<decltype(its), GroupSetting>)
          return Texts()(config.*its.member);
        else
          return Texts()(config.*its);
      },
      member);
}

const DaemonSetting* find_daemon_setting(std::string_view key) {
  const auto* const found = std::ranges::find(kDaemonSettings, key, &DaemonSetting::key);
  return found == std::end(kDaemonSettings) ? nullptr : found;
}

unsigned default_poll_us(unsigned processors) {
  return processors > kFewProcessors ? kUsualPollUs : 0;
}

uint64_t default_memory_reserve(uint64_t memory_bytes) {
  return std::min(std::max(percent_of(memory_bytes, kReservedPercent), kLeastReserveBytes), memory_bytes / 2);
}

uint64_t memory_reserve_of(const Config& config, uint64_t memory_bytes) {
  return std::min(config.memory_reserve_bytes.value_or(default_memory_reserve(memory_bytes)), memory_bytes);
}

Result<void> check_pools(const Config& config, const PoolOrigins& origins, uint64_t memory_bytes) {
  const uint64_t reserve_bytes = memory_reserve_of(config, memory_bytes);
  uint64_t left_bytes = memory_bytes - reserve_bytes;
  for (const PoolOptions& pool : config.pools) {
    const std::string origin = origin_of(origins, pool.name);
    if (pool.entry_size_bytes > pool.size_bytes) {
      return fail(EINVAL,
                  fmt::format("{}: pool {}: entry_size {} is beyond the pool's size {}", origin, pool.name,
                              format_size_exact(pool.entry_size_bytes), format_size_exact(pool.size_bytes)));
    }
    if (pool.size_bytes > left_bytes) {
      return fail(EINVAL,
                  fmt::format("{}: pool {}: size {} is beyond the memory: {} of {} are left, without the "
                              "memory_reserve of {}",
                              origin, pool.name, format_size_exact(pool.size_bytes), format_size(left_bytes),
                              format_size(memory_bytes), format_size(reserve_bytes)));
    }
    left_bytes -= pool.size_bytes;
    Result<void> good = check_size_max(pool);
    if (good) good = check_disks(config.pools, pool);
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
