#include "fs/control/orders.h"

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>

#include "base/escape.h"
#include "base/key_value.h"
#include "base/size.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

Result<PrefetchOrder> parse_prefetch_line(std::string_view line) {
  PrefetchOrder order;
  std::string_view name = line;
  const size_t blank = line.find_last_of(" \t");
  if (blank != std::string_view::npos && blank > 0) {
    if (const auto priority = number_in<int>(line.substr(blank + 1))) {
      if (*priority > kMaximumPrefetchPriority || *priority < -kMaximumPrefetchPriority) {
        return fail(EINVAL, fmt::format("{} is not a priority from -{} to {}", *priority,
                                        kMaximumPrefetchPriority, kMaximumPrefetchPriority));
      }
      order.priority = *priority;
      name = line.substr(0, blank);
    }
  }
  const std::filesystem::path path = std::filesystem::path(unescaped(name)).lexically_normal();
  if (path.empty() || path.is_absolute() || *path.begin() == ".." ||
      path.native().find('\0') != std::string::npos) {
    return fail(EINVAL, fmt::format("'{}' is not a name in the pool", name));
  }
  order.name = path.native();
  return order;
}

}  // namespace

Result<EvictOrder> parse_evict_order(std::string_view text) {
  const std::string_view order = trimmed(text);
  if (order.ends_with('%')) {
    Result<unsigned> percent = parse_percent(order, 0);
    if (!percent) return pass(percent);
    return EvictOrder{EvictOrder::Unit::kPercent, *percent};
  }
  constexpr std::string_view kEntries = "entries";
  const bool entries = order.ends_with(kEntries);
  const std::string_view amount = entries ? trimmed(order.substr(0, order.size() - kEntries.size())) : order;
  if (Result<uint64_t> number = parse_number(amount)) return EvictOrder{EvictOrder::Unit::kEntries, *number};
  Result<uint64_t> bytes = parse_size(amount);
  if (entries || !bytes) {
    return fail(EINVAL, fmt::format("'{}' is no order to evict (such as 25%, 10G or 1000 entries)", order));
  }
  return EvictOrder{EvictOrder::Unit::kBytes, *bytes};
}

Result<std::vector<PrefetchOrder>> parse_prefetch_orders(std::string_view text) {
  std::vector<PrefetchOrder> orders;
  while (!text.empty()) {
    const std::string_view line = take_part(text, '\n');
    if (line.find_first_not_of(kBlanks) == std::string_view::npos) continue;
    Result<PrefetchOrder> order = parse_prefetch_line(line);
    if (!order) return pass(order);
    orders.push_back(std::move(*order));
  }
  return orders;
}

std::string prefetch_line(const PrefetchOrder& order) {
  return fmt::format("{}\t{}\n", escaped(order.name, "\\"), order.priority);
}

Result<ScrubOrder> parse_scrub_order(std::string_view text) {
  const std::string_view order = trimmed(text);
  if (order == "stop") return ScrubOrder{};
  constexpr std::string_view kStart = "start";
  if (order == kStart) return ScrubOrder{true, kDefaultScrubBytesPerSecond};
  if (order.starts_with(kStart) && kBlanks.find(order[kStart.size()]) != std::string_view::npos) {
    Result<uint64_t> rate = parse_size(trimmed(order.substr(kStart.size())));
    if (rate && *rate > 0) return ScrubOrder{true, *rate};
  }
  return fail(EINVAL, fmt::format("'{}' is no order to scrub (start, start 200M, stop)", order));
}

}  // namespace kvcachefs
