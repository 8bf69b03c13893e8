#include "fs/control/stats.h"

#include <fmt/format.h>
#include <unistd.h>

#include <iterator>
#include <type_traits>

#include "fs/control/pool_stats.h"

namespace kvcachefs {
namespace {

decltype(Stat::value) value_of(const PoolStat& stat, const PoolReading& reading) {
  return std::visit(
      [&](auto member) -> decltype(Stat::value) {
        if constexpr (std::is_same_v<decltype(member), PoolStat::Counter>) {
          return (reading.counters.*member).load(std::memory_order_relaxed);
        } else if constexpr (requires { reading.usage.*member; }) {
          return reading.usage.*member;
        } else if constexpr (requires { reading.spill.*member; }) {
          return uint64_t{reading.spill.*member};
        } else {
          return reading.*member;
        }
      },
      stat.member);
}

}  // namespace

PoolReport make_pool_report(const PoolOptions& options, const PoolUsage& usage, const PoolCounters& counters,
                            uint64_t expected_entry_bytes, std::vector<NodeUsage> nodes,
                            const SpillUsage& spill, std::string_view io_mode) {
  uint64_t huge_bytes = 0;
  for (const NodeUsage& node : nodes) huge_bytes += node.huge_bytes;
  const PoolReading reading = {
      usage, spill, counters, expected_entry_bytes, huge_bytes, options.policy, std::string(io_mode)};
  PoolReport report;
  report.name = options.name;
  for (const PoolStat& stat : kPoolStats) report.stats.push_back({stat.name, value_of(stat, reading)});
  for (const PoolHistogram& each : kPoolHistograms)
    report.histograms.push_back((counters.*each.member).snapshot());
  report.nodes = std::move(nodes);
  return report;
}

Stats make_server_stats(const ServerInfo& info, size_t pools, uint64_t now_ns) {
  return {
      {"version", info.version},
      {"io_mode", info.io_mode},
      {"transport", info.transport},
      {"threads", uint64_t{info.threads}, "Threads that serve requests."},
      {"poll_us", uint64_t{info.poll_us}},
      {"pools", uint64_t{pools}, "Pools."},
      {"memory_bytes", info.memory_bytes, "Memory of the host, or of the daemon's cgroup."},
      {"memory_reserve_bytes", info.memory_reserve_bytes, "Memory that pools leave to the host."},
      {"uptime_s", (now_ns - info.started_ns) / 1'000'000'000, "Time since the daemon started."},
      {"pid", static_cast<uint64_t>(info.pid)},
      // A process whose supervisor has ended has another parent.
      {"supervisor_pid", static_cast<uint64_t>(info.supervisor_pid == getppid() ? info.supervisor_pid : 0)},
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
