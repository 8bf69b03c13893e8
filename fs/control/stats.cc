#include "fs/control/stats.h"

#include <fmt/format.h>

#include <iterator>

namespace kvcachefs {
namespace {

uint64_t value_of(const std::atomic<uint64_t>& counter) {
  return counter.load(std::memory_order_relaxed);
}

}  // namespace

PoolReport make_pool_report(const PoolOptions& options, const PoolUsage& usage, const PoolCounters& counters,
                            uint64_t expected_entry_bytes, std::vector<NodeUsage> nodes,
                            std::string_view io_mode) {
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
      {"reservations", value_of(counters.reservations)},
      {"reservation_waits", value_of(counters.reservation_waits)},
      {"reservation_wait_ns", value_of(counters.reservation_wait_ns)},
      {"reservation_failures", value_of(counters.reservation_failures)},
      {"evict_orders", value_of(counters.evict_orders)},
      {"entry_size_bytes", expected_entry_bytes},
      {"huge_bytes", huge_bytes},
      {"io_mode", std::string(io_mode)},
  };
  report.open_ns = counters.open_ns.snapshot();
  report.create_ns = counters.create_ns.snapshot();
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
