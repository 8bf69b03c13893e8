#include "fs/control/stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace kvcachefs {
namespace {

uint64_t value_of(const std::atomic<uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

Stats spill_stats(const SpillUsage& usage, const PoolCounters& counters) {
  return {
      {"spill_size_bytes", usage.size_bytes},
      {"spill_used_bytes", usage.used_bytes},
      {"spill_free_bytes", usage.free_bytes},
      {"spill_largest_free_run_bytes", usage.largest_free_run_bytes},
      {"dirty_entries", usage.dirty_entries},
      {"dirty_bytes", usage.dirty_bytes},
      {"clean_entries", usage.clean_entries},
      {"clean_bytes", usage.clean_bytes},
      {"cold_entries", usage.cold_entries},
      {"cold_bytes", usage.cold_bytes},
      {"spills", value_of(counters.spills)},
      {"spilled_bytes", value_of(counters.spilled_bytes)},
      {"spill_errors", value_of(counters.spill_errors)},
      {"promotes", value_of(counters.promotes)},
      {"promoted_bytes", value_of(counters.promoted_bytes)},
      {"promote_errors", value_of(counters.promote_errors)},
      {"promote_waits", value_of(counters.promote_waits)},
      {"served_from_disk", value_of(counters.served_from_disk)},
      {"checksum_errors", value_of(counters.checksum_errors)},
      {"disk_discards", value_of(counters.disk_discards)},
      {"overrun_discards", value_of(counters.overrun_discards)},
      {"admitted_bytes", value_of(counters.admitted_bytes)},
      {"refused_bytes", value_of(counters.refused_bytes)},
      {"prefetch_useful", value_of(counters.prefetch_useful)},
      {"prefetch_wasted", value_of(counters.prefetch_wasted)},
      {"catalog_commits", value_of(counters.catalog_commits)},
      {"catalog_errors", value_of(counters.catalog_errors)},
      {"disk_failed", uint64_t{usage.failed}},
      {"disk_away", uint64_t{usage.away}},
  };
}

}  // namespace

PoolReport make_pool_report(const PoolOptions& options, const PoolUsage& usage, const PoolCounters& counters,
                            uint64_t expected_entry_bytes, std::vector<NodeUsage> nodes,
                            const SpillUsage& spill, std::string_view io_mode) {
  uint64_t huge_bytes = 0;
  for (const NodeUsage& node : nodes) huge_bytes += node.huge_bytes;
  PoolReport report;
  report.name = options.name;
  report.stats = {
      {"size_bytes", usage.size_bytes},
      {"used_bytes", usage.used_bytes},
      {"free_bytes", usage.free_bytes},
      {"evictable_bytes", usage.evictable_bytes},
      {"pinned_bytes", usage.pinned_bytes},
      {"pinned_max_bytes", usage.pinned_max_bytes},
      {"entries", usage.entries},
      {"open_entries", usage.open_entries},
      {"policy", options.policy},
      {"opens_hit", value_of(counters.opens_hit)},
      {"lookups_missed", value_of(counters.lookups_missed)},
      {"creates", value_of(counters.creates)},
      {"removes", value_of(counters.removes)},
      {"evictions", value_of(counters.evictions)},
      {"discards", value_of(counters.discards)},
      {"discarded_bytes", value_of(counters.discarded_bytes)},
      {"directories_reclaimed", value_of(counters.directories_reclaimed)},
      {"reservations", value_of(counters.reservations)},
      {"reservation_waits", value_of(counters.reservation_waits)},
      {"reservation_wait_ns", value_of(counters.reservation_wait_ns)},
      {"reservation_failures", value_of(counters.reservation_failures)},
      {"no_space_errors", value_of(counters.no_space_errors)},
      {"evict_orders", value_of(counters.evict_orders)},
      {"entry_size_bytes", expected_entry_bytes},
      {"huge_bytes", huge_bytes},
  };
  std::ranges::move(spill_stats(spill, counters), std::back_inserter(report.stats));
  report.stats.push_back({"io_mode", std::string(io_mode)});
  report.open_ns = counters.open_ns.snapshot();
  report.create_ns = counters.create_ns.snapshot();
  report.promote_ns = counters.promote_ns.snapshot();
  report.spill = spill;
  report.nodes = std::move(nodes);
  return report;
}

Stats make_server_stats(const ServerInfo& info, size_t pools, uint64_t now_ns) {
  return {
      {"version", info.version},
      {"io_mode", info.io_mode},
      {"transport", info.transport},
      {"threads", uint64_t{info.threads}},
      {"poll_us", uint64_t{info.poll_us}},
      {"pools", uint64_t{pools}},
      {"memory_bytes", info.memory_bytes},
      {"uptime_s", (now_ns - info.started_ns) / 1'000'000'000},
      {"pid", static_cast<uint64_t>(info.pid)},
      {"supervisor_pid", static_cast<uint64_t>(info.supervisor_pid)},
      {"generation", uint64_t{info.generation}},
  };
}

std::string render_text(const Stats& stats) {
  std::string text;
  for (const Stat& stat : stats) {
    std::visit(
        [&](const auto& value) { fmt::format_to(std::back_inserter(text), "{} {}\n", stat.name, value); },
        stat.value);
  }
  return text;
}

}  // namespace kvcachefs
