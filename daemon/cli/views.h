// The texts that the kvcachefs tool shows, made from counters by pure functions; each line ends with a
// newline. Any thread; never fails.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "daemon/cli/mount_tree.h"

namespace kvcachefs {

struct PoolSample {
  std::string name;
  StatsReading stats;
};

struct Sample {
  double time_s = 0;  // on a monotonic clock
  std::string mount;
  StatsReading daemon;
  std::vector<PoolSample> pools;
};

// Settings as their control files show them, by the file's name.
using PoolDetails = std::map<std::string_view, std::string>;

std::string daemon_view(const Sample& sample);
std::string status_view(const Sample& sample);
std::string pool_view(const PoolSample& pool, const PoolDetails& details);
// Rates are those between the two samples; without an earlier sample they are means since the daemon's start.
std::string top_view(const Sample& sample, const Sample* earlier);

std::string format_percent(uint64_t part, uint64_t whole);  // - if the whole is 0
std::string format_duration(uint64_t seconds);

}  // namespace kvcachefs
