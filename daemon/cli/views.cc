#include "daemon/cli/views.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/key_value.h"
#include "base/size.h"
#include "daemon/cli/table.h"

namespace kvcachefs {
namespace {

std::string count(const StatsReading& stats, std::string_view name) {
  return std::to_string(stats.number(name));
}

// A count with its limit, if it has one.
std::string limited(const StatsReading& stats, const std::string& name) {
  const uint64_t most = stats.number("max_" + name);
  return count(stats, name) + (most == 0 ? std::string() : fmt::format(" of at most {}", most));
}

std::string size(const StatsReading& stats, std::string_view name) {
  return format_size(stats.number(name));
}

std::string hit_percent(uint64_t hits, uint64_t misses) {
  return format_percent(hits, hits + misses);
}

// The sum counts all entries that eviction took out of memory, to the disk or for good.
uint64_t evictions(const StatsReading& stats) {
  return stats.number("evictions") + stats.number("discards");
}

std::string rate(uint64_t now, uint64_t before, double seconds) {
  // A pool that was deleted and created again counts from 0.
  const uint64_t difference = now >= before ? now - before : now;
  if (seconds <= 0) return "-";
  const double value = static_cast<double>(difference) / seconds;
  return value > 0 && value < 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

std::string byte_rate(uint64_t now, uint64_t before, double seconds) {
  const uint64_t difference = now >= before ? now - before : now;
  if (seconds <= 0) return "-";
  return format_size(static_cast<uint64_t>(static_cast<double>(difference) / seconds));
}

bool any_disk(const Sample& sample) {
  return std::ranges::any_of(
      sample.pools, [](const PoolSample& pool) { return pool.stats.number("spill_size_bytes") > 0; });
}

// The cells of a pool's row, each with the title of its column.
struct Cell {
  Table::Column column;
  std::string text;
};
using Row = std::vector<Cell>;

template <class RowOf>
std::string table_view(const Sample& sample, RowOf row_of) {
  std::vector<Table::Column> columns;
  for (const Cell& cell : row_of(PoolSample{})) columns.push_back(cell.column);
  Table table(std::move(columns));
  for (const PoolSample& pool : sample.pools) {
    std::vector<std::string> texts;
    for (Cell& cell : row_of(pool)) texts.push_back(std::move(cell.text));
    table.add(std::move(texts));
  }
  return daemon_view(sample) + '\n' + table.text();
}

using Lines = std::vector<std::pair<const char*, std::string>>;

// `user 1000 bytes 4096 disk 0 over no`, as the control file has them after a line of the share; the first
// are those with the most.
std::string user_lines(const StatsReading& stats, const PoolDetails& details) {
  constexpr size_t kShown = 8;
  const uint64_t share = stats.number("user_share_bytes");
  std::string out = fmt::format(
      "{}, {}", count(stats, "users"),
      share == 0 ? "without shares"
                 : fmt::format("{} over a share of {}", count(stats, "users_over"), format_size(share)));
  std::string_view rest = details.at("users");
  (void)take_part(rest, '\n');  // the share
  for (size_t shown = 0; !rest.empty(); ++shown) {
    if (shown == kShown) return out + fmt::format("\n{:14}and others: .pool/users", "");
    std::string_view line = take_part(rest, '\n');
    const auto value = [&line] {
      (void)take_part(line, ' ');
      return take_part(line, ' ');
    };
    const std::string_view user = value(), bytes = value(), disk = value(), over = value();
    out += fmt::format("\n{:14}{}: {}, {} on disk{}", "", user,
                       format_size(number_in<uint64_t>(bytes).value_or(0)),
                       format_size(number_in<uint64_t>(disk).value_or(0)), over == "yes" ? ", over" : "");
  }
  return out;
}

Lines disk_lines(const StatsReading& stats, const PoolDetails& details) {
  const auto kind = [&](const std::string& state) {
    return fmt::format("{} {} ({})", count(stats, state + "_entries"), state, size(stats, state + "_bytes"));
  };
  return {
      {"disk", details.at("spill")},
      {"disk used",
       fmt::format("{} ({}), largest free run {}", size(stats, "spill_used_bytes"),
                   format_percent(stats.number("spill_used_bytes"), stats.number("spill_size_bytes")),
                   size(stats, "spill_largest_free_run_bytes"))},
      {"durability", details.at("durability")},
      {"admission", fmt::format("{}: {} admitted, {} refused", details.at("admission"),
                                size(stats, "admitted_bytes"), size(stats, "refused_bytes"))},
      {"copies", fmt::format("{}, {}, {}", kind("dirty"), kind("clean"), kind("cold"))},
      {"spills",
       fmt::format("{} ({}), {} errors, {} not made", count(stats, "spills"), size(stats, "spilled_bytes"),
                   count(stats, "spill_errors"), count(stats, "spills_not_made"))},
      {"promotes",
       fmt::format("{} ({}), {} waited for, {} errors, {} served from disk", count(stats, "promotes"),
                   size(stats, "promoted_bytes"), count(stats, "promote_waits"),
                   count(stats, "promote_errors"), count(stats, "served_from_disk"))},
      {"prefetch",
       fmt::format("{} useful, {} wasted", count(stats, "prefetch_useful"), count(stats, "prefetch_wasted"))},
      {"lost",
       fmt::format("{} damaged, {} with a full disk, {} with a slow one", count(stats, "damaged_discards"),
                   count(stats, "disk_discards"), count(stats, "overrun_discards"))},
      {"catalog",
       fmt::format("{} commits, {} errors{}", count(stats, "catalog_commits"), count(stats, "catalog_errors"),
                   stats.number("disk_failed") != 0      ? "; FAILED, nothing more until a restart"
                   : stats.number("disk_away") != 0      ? "; AWAY, served from memory and tried again"
                   : stats.number("disk_restoring") != 0 ? "; what the disk has is being brought back"
                                                         : "")},
  };
}

const StatsReading& stats_before(const Sample* earlier, std::string_view pool) {
  static const StatsReading kNone;
  if (earlier == nullptr) return kNone;
  const auto found = std::ranges::find(earlier->pools, pool, &PoolSample::name);
  return found == earlier->pools.end() ? kNone : found->stats;
}

}  // namespace

std::string format_percent(uint64_t part, uint64_t whole) {
  if (whole == 0) return "-";
  return fmt::format(
      "{}%", static_cast<uint64_t>(100.0 * static_cast<double>(part) / static_cast<double>(whole) + 0.5));
}

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
  return table_view(sample, [with_disk = any_disk(sample)](const PoolSample& pool) {
    const StatsReading& stats = pool.stats;
    Row row{{{"POOL", Align::kLeft}, pool.name},
            {{"POLICY", Align::kLeft}, stats.text("policy")},
            {{"SIZE"}, size(stats, "size_bytes")},
            {{"USED"}, size(stats, "used_bytes")},
            {{"USE%"}, format_percent(stats.number("used_bytes"), stats.number("size_bytes"))},
            {{"EVICTABLE"}, size(stats, "evictable_bytes")},
            {{"PINNED"}, size(stats, "pinned_bytes")},
            {{"ENTRIES"}, count(stats, "entries")},
            {{"OPEN"}, count(stats, "open_entries")},
            {{"HITS"}, count(stats, "opens_hit")},
            {{"MISSES"}, count(stats, "lookups_missed")},
            {{"DISCARDS"}, count(stats, "discards")}};
    if (with_disk)
      row.insert(
          row.end(),
          {{{"DISK"}, size(stats, "spill_size_bytes")},
           {{"ON DISK"}, size(stats, "spill_used_bytes")},
           {{"DISK%"}, format_percent(stats.number("spill_used_bytes"), stats.number("spill_size_bytes"))},
           {{"DIRTY"}, size(stats, "dirty_bytes")},
           {{"COLD"}, size(stats, "cold_bytes")}});
    return row;
  });
}

std::string pool_view(const PoolSample& pool, const PoolDetails& details) {
  const StatsReading& stats = pool.stats;
  Lines lines = {
      {"pool", pool.name},
      {"policy", stats.text("policy")},
      {"watermarks", details.at("watermarks")},
      {"size", size(stats, "size_bytes")},
      {"used", fmt::format("{} ({})", size(stats, "used_bytes"),
                           format_percent(stats.number("used_bytes"), stats.number("size_bytes")))},
      {"free", size(stats, "free_bytes")},
      {"evictable", size(stats, "evictable_bytes")},
      {"pinned",
       fmt::format("{} of at most {}", size(stats, "pinned_bytes"), size(stats, "pinned_max_bytes"))},
      {"users", user_lines(stats, details)},
      {"huge pages", size(stats, "huge_bytes")},
      {"entries", fmt::format("{}, {} open", limited(stats, "entries"), count(stats, "open_entries"))},
      {"directories", limited(stats, "directories")},
      {"entry size", details.at("entry_size")},
      {"opens",
       fmt::format("{} hits, {} misses ({} hits)", count(stats, "opens_hit"), count(stats, "lookups_missed"),
                   hit_percent(stats.number("opens_hit"), stats.number("lookups_missed")))},
      {"changes", fmt::format("{} created, {} removed", count(stats, "creates"), count(stats, "removes"))},
      {"evictions",
       fmt::format("{}, {} discarded ({}): {} expired, {} with their group", count(stats, "evictions"),
                   count(stats, "discards"), size(stats, "discarded_bytes"), count(stats, "expired"),
                   count(stats, "group_discards"))},
      {"reservations",
       fmt::format("{}, {} waited {} ms in all, {} failed, {} times ENOSPC", count(stats, "reservations"),
                   count(stats, "reservation_waits"), stats.number("reservation_wait_ns") / 1'000'000,
                   count(stats, "reservation_failures"), count(stats, "no_space_errors"))},
      {"I/O", stats.text("io_mode")},
  };
  if (stats.number("spill_size_bytes") > 0)
    std::ranges::move(disk_lines(stats, details), std::back_inserter(lines));
  std::string out;
  for (const auto& [name, value] : lines)
    out += fmt::format("{:<12}  {}\n", name, value.empty() ? "-" : value);
  return out;
}

std::string top_view(const Sample& sample, const Sample* earlier) {
  const double seconds = earlier == nullptr ? static_cast<double>(sample.daemon.number("uptime_s"))
                                            : sample.time_s - earlier->time_s;
  return table_view(sample, [&, with_disk = any_disk(sample)](const PoolSample& pool) {
    const StatsReading& stats = pool.stats;
    const StatsReading& before = stats_before(earlier, pool.name);
    const auto per_second = [&](std::string_view counter) {
      return rate(stats.number(counter), before.number(counter), seconds);
    };
    const auto bytes_per_second = [&](std::string_view counter) {
      return byte_rate(stats.number(counter), before.number(counter), seconds);
    };
    const auto since = [&](std::string_view counter) {
      return stats.number(counter) - std::min(before.number(counter), stats.number(counter));
    };
    Row row{{{"POOL", Align::kLeft}, pool.name},
            {{"SIZE"}, size(stats, "size_bytes")},
            {{"USED"}, size(stats, "used_bytes")},
            {{"USE%"}, format_percent(stats.number("used_bytes"), stats.number("size_bytes"))},
            {{"PINNED"}, size(stats, "pinned_bytes")},
            {{"ENTRIES"}, count(stats, "entries")},
            {{"OPEN"}, count(stats, "open_entries")},
            {{"HITS/s"}, per_second("opens_hit")},
            {{"MISSES/s"}, per_second("lookups_missed")},
            {{"HIT%"}, hit_percent(since("opens_hit"), since("lookups_missed"))},
            {{"CREATES/s"}, per_second("creates")},
            {{"REMOVES/s"}, per_second("removes")},
            {{"EVICTIONS/s"}, rate(evictions(stats), evictions(before), seconds)},
            {{"DISCARDS/s"}, per_second("discards")}};
    if (with_disk)
      row.insert(
          row.end(),
          {{{"DISK%"}, format_percent(stats.number("spill_used_bytes"), stats.number("spill_size_bytes"))},
           {{"SPILLED/s"}, bytes_per_second("spilled_bytes")},
           {{"PROMOTED/s"}, bytes_per_second("promoted_bytes")}});
    return row;
  });
}

}  // namespace kvcachefs
