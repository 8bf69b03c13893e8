#include "fs/control/pool_files.h"

#include <fmt/format.h>

#include <array>
#include <cerrno>
#include <iterator>
#include <string>
#include <vector>

#include "base/size.h"
#include "fs/control/entries_reader.h"
#include "fs/control/orders.h"
#include "fs/control/stats_json.h"

namespace kvcachefs {
namespace {

using Setter = Result<void> (*)(ControlledPool&, const PoolOptions& wanted);

std::unexpected<Error> wrong_text(ControlledPool& pool, std::string message) {
  return fail(EINVAL, fmt::format("pool {}: {}", pool.options().name, message));
}

// The keys and texts are those of the command line; `setter` puts a parsed option into effect.
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

Result<std::string> show_size_max(ControlledPool& pool) {
  return format_size_exact(pool.options().size_max_bytes) + "\n";
}

Result<void> write_size_max(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "size_max", text, [](ControlledPool& target, const PoolOptions& wanted) {
    return target.set_size_max(wanted.size_max_bytes);
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

Result<void> need_disk(ControlledPool& pool) {
  if (!pool.options().spill_path.empty()) return {};
  return fail(EOPNOTSUPP, fmt::format("pool {} has no disk tier", pool.options().name));
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
  if (!wanted.spill_path.empty()) return pool.set_spill(wanted);
  return fail(EOPNOTSUPP, fmt::format("pool {}: spill: {} cannot be taken away while the pool serves",
                                      present.name, present.spill_path));
}

Result<std::string> show_durability(ControlledPool& pool) {
  return fmt::format("{}\n", durability_name(durability_of(pool.options())));
}

Result<void> write_durability(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "durability", text, [](ControlledPool& target, const PoolOptions& wanted) {
    const Durability durability = durability_of(wanted);
    // A pool without a disk tier may be told what it has already.
    if (durability == durability_of(target.options())) return Result<void>{};
    Result<void> disk = need_disk(target);
    return disk ? target.set_durability(durability) : disk;
  });
}

Result<std::string> show_admission(ControlledPool& pool) {
  return fmt::format("{}\n", admission_name(pool.options().admission));
}

Result<void> write_admission(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "admission", text, [](ControlledPool& target, const PoolOptions& wanted) {
    if (wanted.admission == target.options().admission) return Result<void>{};
    Result<void> disk = need_disk(target);
    return disk ? target.set_admission(wanted.admission) : disk;
  });
}

Result<std::string> show_auto_prefetch(ControlledPool& pool) {
  return pool_option_text(pool.options(), "prefetch") + "\n";
}

Result<void> write_auto_prefetch(ControlledPool& pool, std::string_view text) {
  return set_option(pool, "prefetch", text, [](ControlledPool& target, const PoolOptions& wanted) {
    if (wanted.prefetch == target.options().prefetch) return Result<void>{};
    Result<void> disk = need_disk(target);
    return disk ? target.set_auto_prefetch(wanted.prefetch) : disk;
  });
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
    PoolFile{
        .name = "size", .text = show_size, .stream = nullptr, .write = write_size, .of_administrator = true},
    PoolFile{.name = "policy", .text = show_policy, .stream = nullptr, .write = write_policy},
    PoolFile{.name = "watermarks", .text = show_watermarks, .stream = nullptr, .write = write_watermarks},
    PoolFile{.name = "entry_size", .text = show_entry_size, .stream = nullptr, .write = write_entry_size},
    PoolFile{.name = "pinned_max",
             .text = show_pinned_max,
             .stream = nullptr,
             .write = write_pinned_max,
             .of_administrator = true},
    PoolFile{.name = "evict", .text = show_evict, .stream = nullptr, .write = write_evict},
    PoolFile{.name = "spill",
             .text = show_spill,
             .stream = nullptr,
             .write = write_spill,
             .of_administrator = true},
    PoolFile{.name = "durability", .text = show_durability, .stream = nullptr, .write = write_durability},
    PoolFile{.name = "admission", .text = show_admission, .stream = nullptr, .write = write_admission},
    PoolFile{
        .name = "auto_prefetch", .text = show_auto_prefetch, .stream = nullptr, .write = write_auto_prefetch},
    PoolFile{.name = "prefetch",
             .text = show_prefetch,
             .stream = nullptr,
             .write = write_prefetch,
             .takes_lines = true},
    PoolFile{.name = "scrub",
             .text = show_scrub,
             .stream = nullptr,
             .write = write_scrub,
             .of_administrator = true},
    PoolFile{
        .name = "stats", .text = show_stats, .stream = nullptr, .write = nullptr, .cost = ReadCost::kGathers},
    PoolFile{.name = "stats.json",
             .text = show_stats_json,
             .stream = nullptr,
             .write = nullptr,
             .cost = ReadCost::kGathers},
    PoolFile{
        .name = "numa", .text = show_numa, .stream = nullptr, .write = nullptr, .cost = ReadCost::kSurveys},
    PoolFile{.name = "entries",
             .text = nullptr,
             .stream = stream_entries,
             .write = nullptr,
             .of_administrator = true,
             .only_owner_reads = true,
             .cost = ReadCost::kGathers},
    PoolFile{.name = "size_max",
             .text = show_size_max,
             .stream = nullptr,
             .write = write_size_max,
             .of_administrator = true,
             .owner_only_reads = true},
};

}  // namespace

std::span<const PoolFile> pool_files() {
  return kFiles;
}

}  // namespace kvcachefs
