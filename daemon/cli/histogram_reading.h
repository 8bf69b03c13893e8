// The histograms of a mount's metrics (Prometheus text), and what they say of the time between two readings.
// Any thread; pure. Never fails: what is no line of a histogram is left out.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace kvcachefs {

class HistogramReading {
 public:
  void add_bucket(double up_to_s, uint64_t count) { counts_[up_to_s] += count; }
  HistogramReading& operator+=(const HistogramReading& other);

  uint64_t count() const { return counts_.empty() ? 0 : counts_.rbegin()->second; }
  // What was counted since; all, if the earlier one counted more: then the pool was made anew.
  HistogramReading since(const HistogramReading& earlier) const;
  // The value in seconds below which the part lies, evenly spread in its bucket; none if nothing was counted.
  std::optional<double> quantile(double part) const;

 private:
  std::map<double, uint64_t> counts_;  // by their upper bound: all values up to it
};

// By the pool, then by the name, as `open` and `promote`.
using PoolHistograms =
    std::map<std::string, std::map<std::string, HistogramReading, std::less<>>, std::less<>>;
PoolHistograms parse_histograms(std::string_view metrics);

// The form is `3.2us`, `410ms`, `12s`.
std::string format_latency(double seconds);

}  // namespace kvcachefs
