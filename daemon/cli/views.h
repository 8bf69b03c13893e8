// What the kvcachefs tool shows: pure functions from counters to text, each line ended. Any thread; never
// fails.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "daemon/cli/mount_tree.h"

namespace kvcachefs {

struct PoolSample {
  std::string name;
  StatsReading stats;
};

struct Sample {
  double time_s = 0;  // of a monotonic clock
  std::string mount;
  StatsReading daemon;
  std::vector<PoolSample> pools;
};

// What is not among the counters, as the control files say it.
struct PoolDetails {
  std::string watermarks;
  std::string entry_size;
  std::string spill;
  std::string durability;
  std::string admission;
};

std::string daemon_view(const Sample& sample);
std::string status_view(const Sample& sample);
std::string pool_view(const PoolSample& pool, const PoolDetails& details);
// Rates are between the two samples; without an earlier one they are means since the daemon's start.
std::string top_view(const Sample& sample, const Sample* earlier);

std::string format_duration(uint64_t seconds);

}  // namespace kvcachefs
