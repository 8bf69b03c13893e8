// Statistics as an ordered list of names and values, from which the text, JSON and Prometheus forms are made.
// Thread safety: pure functions, any thread. Failure: none.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/histogram.h"
#include "tier/counters.h"
#include "tier/disk/spill_orders.h"
#include "tier/pool/pool.h"
#include "tier/pool_options.h"

namespace kvcachefs {

struct Stat {
  std::string_view name;
  std::variant<uint64_t, std::string> value;
  std::string_view help = {};  // of a metric of the whole daemon
};

using Stats = std::vector<Stat>;

// Facts that hold for the whole daemon from its start on.
struct ServerInfo {
  std::string version = KVCACHEFS_VERSION;
  std::string io_mode = "passthrough";  // or `daemon`
  std::string transport = "dev_fuse";   // or `io_uring`
  unsigned threads = 0;
  unsigned poll_us = 0;
  uint64_t memory_bytes = 0;
  uint64_t memory_reserve_bytes = 0;
  uint64_t started_ns = 0;  // on the clock of base/clock.h
  pid_t pid = 0;
  pid_t supervisor_pid = 0;  // the parent of this process; 0: none
  uint32_t generation = 0;   // number of processes that served this mount before
};

struct PoolReport {
  std::string name;
  Stats stats;
  std::vector<HistogramSnapshot> histograms;  // those of fs/control/pool_stats.h
  std::vector<NodeUsage> nodes;
};

PoolReport make_pool_report(const PoolOptions& options, const PoolUsage& usage, const PoolCounters& counters,
                            uint64_t expected_entry_bytes, std::vector<NodeUsage> nodes,
                            const SpillUsage& spill, std::string_view io_mode);

Stats make_server_stats(const ServerInfo& info, size_t pools, uint64_t now_ns);

// The text has one line `name value` for each statistic.
std::string render_text(const Stats& stats);

// JSON ends with a newline; bytes that are not UTF-8 are replaced. The second form is the daemon's
// statistics, with `pools` an object of each pool's.
std::string render_json(const Stats& stats);
std::string render_json(const Stats& server, std::span<const PoolReport> pools);

// All that the daemon measures, in the text format of Prometheus (version 0.0.4).
std::string render_metrics(const Stats& server, std::span<const PoolReport> pools);

}  // namespace kvcachefs
