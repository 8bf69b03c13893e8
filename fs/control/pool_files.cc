#include "fs/control/pool_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <vector>

#include "base/size.h"
#include "fs/control/entries_reader.h"
#include "fs/control/orders.h"

namespace kvcachefs {
namespace {

std::unexpected<Error> wrong_text(ControlledPool& pool, std::string message) {
  return fail(EINVAL, fmt::format("pool {}: {}", pool.options().name, message));
}

Result<void> need_disk(ControlledPool& pool) {
  if (!pool.options().spill_path.empty()) return {};
  return fail(EOPNOTSUPP, fmt::format("pool {} has no disk tier", pool.options().name));
}

// The key of a setting, as a template argument.
template <size_t kSize>
struct Key {
  consteval Key(const char (&literal)[kSize]) { std::ranges::copy(literal, text); }

  char text[kSize];
};

// A durability that nobody has set is shown as what it is.
PoolOptions present_options(ControlledPool& pool) {
  PoolOptions options = pool.options();
  options.durability = durability_of(options);
  return options;
}

template <Key kKey>
Result<std::string> show(ControlledPool& pool) {
  return pool_option_text(present_options(pool), kKey.text) + "\n";
}

// The keys and texts are those of the command line.
template <Key kKey>
Result<void> write(ControlledPool& pool, std::string_view text) {
  const PoolOptions present = present_options(pool);
  PoolOptions wanted = present;
  if (Result<void> parsed = set_pool_option(wanted, kKey.text, trimmed(text), pool.memory_bytes()); !parsed)
    return wrong_text(pool, parsed.error().message);
  if (const PoolSetting& setting = *find_pool_setting(kKey.text); setting.needs_disk()) {
    // A pool without a disk tier may be told what it has already.
    if (setting.get(wanted) == setting.get(present)) return {};
    if (Result<void> disk = need_disk(pool); !disk) return disk;
  }
  return pool.apply(kKey.text, wanted);
}

Result<std::string> show_entry_size(ControlledPool& pool) {
  const uint64_t learned_bytes = pool.learned_entry_bytes();
  if (pool.options().entry_size_bytes != 0 || learned_bytes == 0) return show<"entry_size">(pool);
  return fmt::format("auto {}\n", format_size_exact(learned_bytes));
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

Result<std::string> show_spill(ControlledPool& pool) {
  return spill_place_text(pool.options()) + "\n";
}

// The check is for orders that only the administrator may give, in a file that the owner may write too.
Result<void> need_administrator(ControlledPool& pool, std::string_view file) {
  if (pool.authority() == Authority::kAdministrator) return {};
  const std::string name = pool.options().name;
  return fail(EPERM, fmt::format("pool {}: {}: that is the administrator's to say, in .kvcachefs/pools/{}/{}",
                                 name, file, name, file));
}

Result<void> write_spill(ControlledPool& pool, std::string_view text) {
  if (Result<void> may = need_administrator(pool, "spill"); !may) return may;
  const PoolOptions present = pool.options();
  PoolOptions wanted = present;
  if (Result<void> parsed = set_spill_order(wanted, trimmed(text)); !parsed) {
    return wrong_text(pool, parsed.error().message);
  }
  if (spill_order_text(wanted) == spill_order_text(present)) return {};
  if (!wanted.spill_path.empty()) return pool.apply("spill", wanted);
  return fail(EOPNOTSUPP, fmt::format("pool {}: spill: {} cannot be taken away while the pool serves",
                                      present.name, present.spill_path));
}

Result<std::string> show_prefetch(ControlledPool& pool) {
  const PrefetchProgress progress = pool.prefetch_progress();
  return fmt::format("queued {}\ndone {}\nfailed {}\ndropped {}\nbytes {}\n", progress.queued, progress.done,
                     progress.failed, progress.dropped, progress.bytes);
}

Result<void> write_prefetch(ControlledPool& pool, std::string_view text) {
  Result<std::vector<PrefetchOrder>> orders = parse_prefetch_orders(text);
  if (!orders) return wrong_text(pool, "prefetch: " + orders.error().message);
  if (orders->empty()) return {};
  Result<void> disk = need_disk(pool);
  return disk ? pool.prefetch(*orders) : disk;
}

Result<std::string> show_scrub(ControlledPool& pool) {
  const ScrubProgress progress = pool.scrub_progress();
  const char* const idle = progress.stopped_by_errors ? "stopped_by_errors" : "idle";
  return fmt::format("state {}\nentries_done {}\nentries_total {}\nbytes {}\ndamaged {}\nunreadable {}\n",
                     progress.running ? "running" : idle, progress.entries_done, progress.entries_total,
                     progress.bytes, progress.damaged, progress.unreadable);
}

Result<void> write_scrub(ControlledPool& pool, std::string_view text) {
  Result<ScrubOrder> order = parse_scrub_order(text);
  if (!order) return wrong_text(pool, "scrub: " + order.error().message);
  if (order->start && order->rate_bytes_per_s > kDefaultScrubBytesPerSecond) {
    if (Result<void> may = need_administrator(pool, "scrub"); !may) return may;
  }
  if (Result<void> disk = need_disk(pool); !disk) return disk;
  return order->start ? pool.start_scrub(order->rate_bytes_per_s) : pool.stop_scrub();
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

// The order must never change, and a new file goes at the end: the kernel keeps nodeids, which are places in
// this table, across an upgrade.
constexpr std::array kFiles = {
    PoolFile{.name = "size", .text = show<"size">, .write = write<"size">, .of_administrator = true},
    PoolFile{.name = "policy", .text = show<"policy">, .write = write<"policy">},
    PoolFile{.name = "watermarks", .text = show<"watermarks">, .write = write<"watermarks">},
    PoolFile{.name = "entry_size", .text = show_entry_size, .write = write<"entry_size">},
    PoolFile{.name = "pinned_max",
             .text = show<"pinned_max">,
             .write = write<"pinned_max">,
             .of_administrator = true},
    PoolFile{.name = "evict", .text = show_evict, .write = write_evict},
    PoolFile{.name = "spill", .text = show_spill, .write = write_spill, .of_administrator = true},
    PoolFile{.name = "durability", .text = show<"durability">, .write = write<"durability">},
    PoolFile{.name = "admission", .text = show<"admission">, .write = write<"admission">},
    PoolFile{.name = "auto_prefetch", .text = show<"prefetch">, .write = write<"prefetch">},
    PoolFile{.name = "prefetch", .text = show_prefetch, .write = write_prefetch, .takes_lines = true},
    PoolFile{.name = "scrub", .text = show_scrub, .write = write_scrub, .of_administrator = true},
    PoolFile{.name = "stats", .text = show_stats, .cost = ReadCost::kGathers},
    PoolFile{.name = "stats.json", .text = show_stats_json, .cost = ReadCost::kGathers},
    PoolFile{.name = "numa", .text = show_numa, .cost = ReadCost::kSurveys},
    PoolFile{.name = "entries",
             .stream = stream_entries,
             .of_administrator = true,
             .only_owner_reads = true,
             .cost = ReadCost::kGathers},
    PoolFile{.name = "size_max",
             .text = show<"size_max">,
             .write = write<"size_max">,
             .of_administrator = true,
             .owner_only_reads = true},
};

}  // namespace

std::span<const PoolFile> pool_files() {
  return kFiles;
}

}  // namespace kvcachefs
