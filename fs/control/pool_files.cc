#include "fs/control/pool_files.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <iterator>

#include "base/size.h"
#include "fs/control/entries_reader.h"
#include "fs/control/stats_json.h"

namespace kvcachefs {
namespace {

using Setter = Result<void> (*)(ControlledPool&, const PoolOptions& wanted);

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

std::unexpected<Error> wrong_text(ControlledPool& pool, std::string message) {
  return fail(EINVAL, fmt::format("pool {}: {}", pool.options().name, message));
}

// The same keys and texts as on the command line, each put into effect by its setter.
Result<void> set_option(ControlledPool& pool, std::string_view key, std::string_view text, Setter setter) {
  PoolOptions wanted = pool.options();
  if (Result<void> parsed = set_pool_option(wanted, key, trimmed(text), pool.memory_bytes()); !parsed) {
    return wrong_text(pool, parsed.error().message);
  }
  return setter(pool, wanted);
}

Result<std::string> show_size(ControlledPool& pool) {
  return format_size_exact(pool.options().size_bytes) + "\n";
}

Result<void> write_size(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "size", text, [](ControlledPool& target, const PoolOptions& wanted) {
    return target.set_size(wanted.size_bytes);
  });
}

Result<std::string> show_policy(ControlledPool& pool) {
  return pool.options().policy + "\n";
}

Result<void> write_policy(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "policy", text, [](ControlledPool& target, const PoolOptions& wanted) {
    return target.set_policy(wanted.policy);
  });
}

Result<std::string> show_watermarks(ControlledPool& pool) {
  return format_watermarks(pool.options().watermarks) + "\n";
}

Result<void> write_watermarks(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "watermarks", text, [](ControlledPool& target, const PoolOptions& wanted) {
    return target.set_watermarks(wanted.watermarks);
  });
}

Result<std::string> show_entry_size(ControlledPool& pool) {
  const uint64_t given_bytes = pool.options().entry_size_bytes;
  if (given_bytes != 0) return format_size_exact(given_bytes) + "\n";
  const uint64_t learned_bytes = pool.learned_entry_bytes();
  if (learned_bytes == 0) return "auto\n";
  return fmt::format("auto {}\n", format_size_exact(learned_bytes));
}

Result<void> write_entry_size(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "entry_size", text, [](ControlledPool& target, const PoolOptions& wanted) {
    return target.set_entry_size(wanted.entry_size_bytes);
  });
}

Result<std::string> show_pinned_max(ControlledPool& pool) {
  return fmt::format("{}%\n", pool.options().pinned_max_percent);
}

Result<void> write_pinned_max(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "pinned_max", text, [](ControlledPool& target, const PoolOptions& wanted) {
    return target.set_pinned_max(wanted.pinned_max_percent);
  });
}

Result<std::string> show_evict(ControlledPool& pool) {
  const EvictResult last = pool.last_evict();
  return fmt::format("evicted {} entries {}\n", last.entries, format_size(last.bytes));
}

Result<void> write_evict(ControlledPool& pool, std::string_view text) {
  Result<EvictOrder> order = parse_evict_order(text);
  if (!order) return wrong_text(pool, "evict: " + order.error().message);
  pool.evict_now(*order);
  return {};
}

Result<std::string> show_stats(ControlledPool& pool) {
  return render_text(pool.report().stats);
}
Result<std::string> show_stats_json(ControlledPool& pool) {
  return render_json(pool.report().stats);
}

Result<std::string> show_numa(ControlledPool& pool) {
  std::string text;
  for (const NodeUsage& node : pool.numa_usage()) {
    fmt::format_to(std::back_inserter(text), "node {} bytes {} huge {}\n", node.node, node.bytes,
                   node.huge_bytes);
  }
  return text;
}

std::unique_ptr<ControlReader> stream_entries(ControlledPool& pool) {
  return std::make_unique<EntriesReader>(pool.listing_shards(),
                                         [&pool](size_t shard) { return pool.list_entries(shard); });
}

constexpr std::array kFiles = {
    PoolFile{.name = "size", .text = show_size, .stream = nullptr, .write = write_size},
    PoolFile{.name = "policy", .text = show_policy, .stream = nullptr, .write = write_policy},
    PoolFile{.name = "watermarks", .text = show_watermarks, .stream = nullptr, .write = write_watermarks},
    PoolFile{.name = "entry_size", .text = show_entry_size, .stream = nullptr, .write = write_entry_size},
    PoolFile{.name = "pinned_max", .text = show_pinned_max, .stream = nullptr, .write = write_pinned_max},
    PoolFile{.name = "evict", .text = show_evict, .stream = nullptr, .write = write_evict},
    PoolFile{.name = "stats", .text = show_stats, .stream = nullptr, .write = nullptr},
    PoolFile{.name = "stats.json", .text = show_stats_json, .stream = nullptr, .write = nullptr},
    PoolFile{.name = "numa", .text = show_numa, .stream = nullptr, .write = nullptr},
    PoolFile{.name = "entries", .text = nullptr, .stream = stream_entries, .write = nullptr},
};

}  // namespace

std::span<const PoolFile> pool_files() {
  return kFiles;
}

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

}  // namespace kvcachefs
