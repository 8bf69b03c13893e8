#include "daemon/cli/histogram_reading.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "base/key_value.h"

namespace kvcachefs {

HistogramReading& HistogramReading::operator+=(const HistogramReading& other) {
  for (const auto& [up_to_s, count] : other.counts_) counts_[up_to_s] += count;
  return *this;
}

HistogramReading HistogramReading::since(const HistogramReading& earlier) const {
  if (earlier.count() > count()) return *this;
  HistogramReading result;
  for (const auto& [up_to_s, count] : counts_) {
    const auto before = earlier.counts_.find(up_to_s);
    const uint64_t less = before == earlier.counts_.end() ? 0 : before->second;
    // The buckets of a reading are not of one instant.
    result.counts_[up_to_s] = count > less ? count - less : 0;
  }
  return result;
}

std::optional<double> HistogramReading::quantile(double part) const {
  if (count() == 0) return std::nullopt;
  const double wanted = part * static_cast<double>(count());
  double below_s = 0;
  uint64_t below = 0;
  for (const auto& [up_to_s, up_to] : counts_) {
    if (static_cast<double>(up_to) >= wanted && up_to > below) {
      if (std::isinf(up_to_s)) return below_s;
      return below_s +
             (up_to_s - below_s) * (wanted - static_cast<double>(below)) / static_cast<double>(up_to - below);
    }
    below_s = up_to_s;
    below = up_to;
  }
  return below_s;
}

PoolHistograms parse_histograms(std::string_view metrics) {
  constexpr std::string_view kStart = "kvcachefs_", kMiddle = "_seconds_bucket{pool=\"", kBound = "\",le=\"",
                             kEnd = "\"} ";
  PoolHistograms result;
  while (!metrics.empty()) {
    const std::string_view line = take_part(metrics, '\n');
    const size_t middle = line.find(kMiddle), bound = line.find(kBound), end = line.rfind(kEnd);
    if (!line.starts_with(kStart) || middle == std::string_view::npos || bound == std::string_view::npos ||
        end == std::string_view::npos || middle < kStart.size() || bound < middle + kMiddle.size() ||
        end < bound + kBound.size())
      continue;
    const std::string_view name = line.substr(kStart.size(), middle - kStart.size());
    const std::string_view pool = line.substr(middle + kMiddle.size(), bound - middle - kMiddle.size());
    const std::string_view up_to = line.substr(bound + kBound.size(), end - bound - kBound.size());
    double up_to_s = std::numeric_limits<double>::infinity();
    if (up_to != "+Inf") {
      const auto [rest, code] = std::from_chars(up_to.data(), up_to.data() + up_to.size(), up_to_s);
      if (code != std::errc() || rest != up_to.data() + up_to.size()) continue;
    }
    const auto count = number_in<uint64_t>(line.substr(end + kEnd.size()));
    if (count) result[std::string(pool)][std::string(name)].add_bucket(up_to_s, *count);
  }
  return result;
}

std::string format_latency(double seconds) {
  for (const auto& [unit, size] : {std::pair{"s", 1.0}, {"ms", 1e-3}, {"us", 1e-6}}) {
    if (seconds < size) continue;
    const double value = seconds / size;
    return value < 10 ? fmt::format("{:.1f}{}", value, unit) : fmt::format("{:.0f}{}", value, unit);
  }
  return fmt::format("{:.0f}ns", seconds * 1e9);
}

}  // namespace kvcachefs
