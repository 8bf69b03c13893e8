#include "daemon/cli/views.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/size.h"
#include "daemon/cli/table.h"

namespace kvcachefs {
namespace {

// "-" where there is nothing to be a part of.
std::string percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format(
      "{}%", static_cast<uint64_t>(100.0 * static_cast<double>(part) / static_cast<double>(whole) + 0.5));
}

std::string count(const StatsReading& stats, std::string_view name) {
  return std::to_string(stats.number(name));
}

std::string size(const StatsReading& stats, std::string_view name) {
  return format_size(stats.number(name));
}

std::string hit_percent(uint64_t hits, uint64_t misses) {
  return percent(hits, hits + misses);
}

std::string rate(uint64_t now, uint64_t before, double seconds) {
  // A pool that was deleted and made again counts from 0.
  const uint64_t difference = now >= before ? now - before : now;
  if (seconds <= 0) return "-";
  const double value = static_cast<double>(difference) / seconds;
  return value > 0 && value < 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

const StatsReading& stats_before(const Sample* earlier, std::string_view pool) {
  static const StatsReading kNone;
  if (earlier == nullptr) return kNone;
  const auto found = std::ranges::find(earlier->pools, pool, &PoolSample::name);
  return found == earlier->pools.end() ? kNone : found->stats;
}

}  // namespace

std::string format_duration(uint64_t seconds) {
  const uint64_t minutes = seconds / 60;
  const uint64_t hours = minutes / 60;
  if (hours >= 24) return fmt::format("{}d {}h", hours / 24, hours % 24);
  if (hours > 0) return fmt::format("{}h {}m", hours, minutes % 60);
  if (minutes > 0) return fmt::format("{}m {}s", minutes, seconds % 60);
  return fmt::format("{}s", seconds);
}

std::string daemon_view(const Sample& sample) {
  const StatsReading& daemon = sample.daemon;
  uint64_t pools_bytes = 0;
  for (const PoolSample& pool : sample.pools) pools_bytes += pool.stats.number("size_bytes");
  return fmt::format("kvcachefs {} at {}: {} over {}, {} threads, up {}\n{} in {} {}, {} of memory\n",
                     daemon.text("version"), sample.mount, daemon.text("io_mode"), daemon.text("transport"),
                     daemon.number("threads"), format_duration(daemon.number("uptime_s")),
                     format_size(pools_bytes), sample.pools.size(),
                     sample.pools.size() == 1 ? "pool" : "pools", format_size(daemon.number("memory_bytes")));
}

std::string status_view(const Sample& sample) {
  Table table({{"POOL", Align::kLeft},
               {"POLICY", Align::kLeft},
               {"SIZE"},
               {"USED"},
               {"USE%"},
               {"EVICTABLE"},
               {"PINNED"},
               {"ENTRIES"},
               {"OPEN"},
               {"HITS"},
               {"MISSES"},
               {"DISCARDS"}});
  for (const auto& [name, stats] : sample.pools) {
    table.add({name, stats.text("policy"), size(stats, "size_bytes"), size(stats, "used_bytes"),
               percent(stats.number("used_bytes"), stats.number("size_bytes")),
               size(stats, "evictable_bytes"), size(stats, "pinned_bytes"), count(stats, "entries"),
               count(stats, "open_entries"), count(stats, "opens_hit"), count(stats, "lookups_missed"),
               count(stats, "discards")});
  }
  return daemon_view(sample) + '\n' + table.text();
}

std::string pool_view(const PoolSample& pool, const PoolDetails& details) {
  const StatsReading& stats = pool.stats;
  const std::pair<const char*, std::string> lines[] = {
      {"pool", pool.name},
      {"policy", stats.text("policy")},
      {"watermarks", details.watermarks},
      {"size", size(stats, "size_bytes")},
      {"used", fmt::format("{} ({})", size(stats, "used_bytes"),
                           percent(stats.number("used_bytes"), stats.number("size_bytes")))},
      {"free", size(stats, "free_bytes")},
      {"evictable", size(stats, "evictable_bytes")},
      {"pinned",
       fmt::format("{} of at most {}", size(stats, "pinned_bytes"), size(stats, "pinned_max_bytes"))},
      {"huge pages", size(stats, "huge_bytes")},
      {"entries", fmt::format("{}, {} open", count(stats, "entries"), count(stats, "open_entries"))},
      {"entry size", details.entry_size},
      {"opens",
       fmt::format("{} hits, {} misses ({} hits)", count(stats, "opens_hit"), count(stats, "lookups_missed"),
                   hit_percent(stats.number("opens_hit"), stats.number("lookups_missed")))},
      {"changes", fmt::format("{} created, {} removed", count(stats, "creates"), count(stats, "removes"))},
      {"evictions", fmt::format("{}, {} discarded ({})", count(stats, "evictions"), count(stats, "discards"),
                                size(stats, "discarded_bytes"))},
      {"reservations",
       fmt::format("{}, {} waited {} ms in all, {} failed", count(stats, "reservations"),
                   count(stats, "reservation_waits"), stats.number("reservation_wait_ns") / 1'000'000,
                   count(stats, "reservation_failures"))},
      {"I/O", stats.text("io_mode")},
  };
  std::string out;
  for (const auto& [name, value] : lines)
    out += fmt::format("{:<12}  {}\n", name, value.empty() ? "-" : value);
  return out;
}

std::string top_view(const Sample& sample, const Sample* earlier) {
  Table table({{"POOL", Align::kLeft},
               {"SIZE"},
               {"USED"},
               {"USE%"},
               {"PINNED"},
               {"ENTRIES"},
               {"OPEN"},
               {"HITS/s"},
               {"MISSES/s"},
               {"HIT%"},
               {"CREATES/s"},
               {"REMOVES/s"},
               {"DISCARDS/s"}});
  const double seconds = earlier == nullptr ? static_cast<double>(sample.daemon.number("uptime_s"))
                                            : sample.time_s - earlier->time_s;
  for (const auto& [name, stats] : sample.pools) {
    const StatsReading& before = stats_before(earlier, name);
    const auto per_second = [&, &now = stats](std::string_view counter) {
      return rate(now.number(counter), before.number(counter), seconds);
    };
    const uint64_t hits =
        stats.number("opens_hit") - std::min(before.number("opens_hit"), stats.number("opens_hit"));
    const uint64_t misses = stats.number("lookups_missed") -
                            std::min(before.number("lookups_missed"), stats.number("lookups_missed"));
    table.add({name, size(stats, "size_bytes"), size(stats, "used_bytes"),
               percent(stats.number("used_bytes"), stats.number("size_bytes")), size(stats, "pinned_bytes"),
               count(stats, "entries"), count(stats, "open_entries"), per_second("opens_hit"),
               per_second("lookups_missed"), hit_percent(hits, misses), per_second("creates"),
               per_second("removes"), per_second("discards")});
  }
  return daemon_view(sample) + '\n' + table.text();
}

}  // namespace kvcachefs
