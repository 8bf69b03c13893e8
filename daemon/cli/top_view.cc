#include "daemon/cli/top_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ranges>
#include <utility>

#include "base/key_value.h"
#include "base/size.h"

namespace kvcachefs {
namespace {

// One pool at the two times.
struct ShownPool {
  const PoolSample* now = nullptr;
  const StatsReading* before = nullptr;
  double seconds = 0;

  uint64_t number(std::string_view name) const { return now->stats.number(name); }
  std::string size(std::string_view name) const { return format_size(number(name)); }
  // A pool that was deleted and made again counts from 0.
  uint64_t since(std::string_view name) const {
    const uint64_t value = number(name), earlier = before->number(name);
    return value >= earlier ? value - earlier : value;
  }
  double rate(std::string_view name) const {
    return seconds > 0 ? static_cast<double>(since(name)) / seconds : 0;
  }
  double requests() const { return rate("opens_hit") + rate("lookups_missed") + rate("creates"); }
};

std::string per_second(double value) {
  if (value >= 1e6) return fmt::format("{:.1f}M", value / 1e6);
  if (value >= 1e4) return fmt::format("{:.0f}k", value / 1e3);
  return value > 0 && value < 10 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

std::string bytes_per_second(double value) {
  return format_size(static_cast<uint64_t>(value));
}

std::vector<ShownPool> pools_of(const TopReading& now, const TopReading* before) {
  static const StatsReading kNone;
  const double seconds = before == nullptr ? static_cast<double>(now.sample.daemon.number("uptime_s"))
                                           : now.sample.time_s - before->sample.time_s;
  std::vector<ShownPool> pools;
  for (const PoolSample& pool : now.sample.pools) {
    const StatsReading* earlier = &kNone;
    if (before != nullptr) {
      const auto found = std::ranges::find(before->sample.pools, pool.name, &PoolSample::name);
      if (found != before->sample.pools.end()) earlier = &found->stats;
    }
    pools.push_back({&pool, earlier, seconds});
  }
  return pools;
}

void sort_pools(std::vector<ShownPool>& pools, TopSort sort) {
  const auto name_of = [](const ShownPool& pool) -> const std::string& { return pool.now->name; };
  const auto most_first = [&](auto value) {
    std::ranges::sort(pools, [&](const ShownPool& a, const ShownPool& b) {
      return value(a) != value(b) ? value(a) > value(b) : name_of(a) < name_of(b);
    });
  };
  std::ranges::sort(pools, {}, name_of);
  if (sort == TopSort::kUsed) most_first([](const ShownPool& pool) { return pool.number("used_bytes"); });
  if (sort == TopSort::kHits) most_first([](const ShownPool& pool) { return pool.number("opens_hit"); });
  if (sort == TopSort::kRate) most_first([](const ShownPool& pool) { return pool.requests(); });
}

// A column of the list of pools. Those of a low rank are there first, as far as the width goes; what is left
// of it goes to those that may be wider.
struct Column {
  std::string_view title;
  int rank;
  size_t width;
  size_t most_width;  // the same: it has one width
  bool of_disk;       // only where a pool has a disk tier
  std::string (*cell)(const TopScreen&, const ShownPool&, size_t width);
};

std::string memory_bar(const TopScreen& screen, const ShownPool& pool, size_t width) {
  return usage_bar(pool.number("pinned_bytes"), pool.number("used_bytes"), pool.number("size_bytes"), width,
                   screen.look);
}

std::string disk_bar(const TopScreen& screen, const ShownPool& pool, size_t width) {
  if (pool.number("spill_size_bytes") == 0) return std::string(width, ' ');
  return usage_bar(0, pool.number("spill_used_bytes"), pool.number("spill_size_bytes"), width, screen.look);
}

std::string hits_over_time(const TopScreen& screen, const ShownPool& pool, size_t width) {
  return spark_line(screen.history.of(pool.now->name), width, screen.look);
}

std::string right(const std::string& text, size_t width) {
  return fitted_right(text, width);
}

constexpr Column kColumns[] = {
    {"POOL", 0, 8, 64, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) { return fitted(pool.now->name, w); }},
    {"MEMORY", 1, 8, 40, false, memory_bar},
    {"USE%", 2, 4, 4, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(format_percent(pool.number("used_bytes"), pool.number("size_bytes")), w);
     }},
    {"SIZE", 4, 6, 6, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) { return right(pool.size("size_bytes"), w); }},
    {"PINNED", 9, 6, 6, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) { return right(pool.size("pinned_bytes"), w); }},
    {"DISK", 5, 8, 24, true, disk_bar},
    {"DISK%", 8, 5, 5, true,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(format_percent(pool.number("spill_used_bytes"), pool.number("spill_size_bytes")), w);
     }},
    {"ENTRIES", 10, 8, 8, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(std::to_string(pool.number("entries")), w);
     }},
    {"OPEN", 14, 6, 6, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(std::to_string(pool.number("open_entries")), w);
     }},
    {"HIT/s", 3, 6, 6, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(per_second(pool.rate("opens_hit")), w);
     }},
    {"MISS/s", 7, 6, 6, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(per_second(pool.rate("lookups_missed")), w);
     }},
    {"HIT%", 6, 4, 4, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(
           format_percent(pool.since("opens_hit"), pool.since("opens_hit") + pool.since("lookups_missed")),
           w);
     }},
    {"HITS", 6, 8, 40, false, hits_over_time},
    {"MAKE/s", 11, 6, 6, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(per_second(pool.rate("creates")), w);
     }},
    {"EVICT/s", 12, 7, 7, false,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(per_second(pool.rate("evictions") + pool.rate("discards")), w);
     }},
    {"SPILL/s", 13, 7, 7, true,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(bytes_per_second(pool.rate("spilled_bytes")), w);
     }},
    {"PROMOTE/s", 13, 9, 9, true,
     [](const TopScreen&, const ShownPool& pool, size_t w) {
       return right(bytes_per_second(pool.rate("promoted_bytes")), w);
     }},
};

struct Placed {
  const Column* column;
  size_t width;
};

std::vector<Placed> columns_in(size_t width, size_t longest_name, bool with_disk) {
  std::vector<Placed> placed;
  size_t taken = 0;
  std::vector<const Column*> by_rank;
  for (const Column& column : kColumns)
    if (with_disk || !column.of_disk) by_rank.push_back(&column);
  std::ranges::sort(by_rank, {}, [](const Column* column) { return std::pair(column->rank, column); });
  for (const Column* column : by_rank) {
    if (taken + column->width + (taken > 0 ? 1 : 0) > width) break;
    taken += column->width + (taken > 0 ? 1 : 0);
    placed.push_back({column, column->width});
  }
  std::ranges::sort(placed, {}, &Placed::column);
  // A column at a time to each, so that they grow alike.
  for (bool grown = true; grown && taken < width;) {
    grown = false;
    for (Placed& its : placed) {
      const size_t most =
          its.column == kColumns ? std::min(longest_name, its.column->most_width) : its.column->most_width;
      if (taken >= width || its.width >= most) continue;
      ++its.width;
      ++taken;
      grown = true;
    }
  }
  return placed;
}

std::vector<std::string> latency_lines(const TopScreen& screen, const std::string* pool, double seconds) {
  static constexpr std::array<std::string_view, 4> kNames{"open", "create", "promote", "spill"};
  const auto sum = [&](const TopReading& reading, std::string_view name) {
    HistogramReading all;
    for (const auto& [of, histograms] : reading.histograms) {
      if (pool != nullptr && of != *pool) continue;
      if (const auto found = histograms.find(name); found != histograms.end()) all += found->second;
    }
    return all;
  };
  std::vector<std::string> lines{fmt::format("{:<8} {:>7} {:>7} {:>7}", "LATENCY", "p50", "p99", "/s")};
  for (const std::string_view name : kNames) {
    HistogramReading reading = sum(screen.now, name);
    if (screen.before != nullptr) reading = reading.since(sum(*screen.before, name));
    const auto text = [&](double part) {
      const auto value = reading.quantile(part);
      return value ? format_latency(*value) : std::string("-");
    };
    lines.push_back(
        fmt::format("{:<8} {:>7} {:>7} {:>7}", name, text(0.5), text(0.99),
                    per_second(seconds > 0 ? static_cast<double>(reading.count()) / seconds : 0)));
  }
  return lines;
}

std::vector<std::string> head_lines(const TopScreen& screen) {
  std::vector<std::string> lines;
  const std::string text = daemon_view(screen.now.sample);
  for (std::string_view rest = text; !rest.empty();)
    lines.push_back(cut(take_part(rest, '\n'), screen.width));
  lines.emplace_back();
  return lines;
}

std::vector<std::string> list_lines(const TopScreen& screen, const std::vector<ShownPool>& pools,
                                    size_t chosen, size_t room) {
  if (pools.empty())
    return {cut("There is no pool: kvcachefs create NAME --size SIZE makes one.", screen.width)};
  size_t longest = 0;
  bool with_disk = false;
  for (const ShownPool& pool : pools) {
    longest = std::max(longest, pool.now->name.size());
    with_disk = with_disk || pool.number("spill_size_bytes") > 0;
  }
  const std::vector<Placed> columns = columns_in(screen.width, longest, with_disk);
  std::string title;
  for (const Placed& its : columns) {
    const bool left = its.column->width != its.column->most_width;
    title += (title.empty() ? "" : " ") +
             (left ? fitted(its.column->title, its.width) : fitted_right(its.column->title, its.width));
  }
  std::vector<std::string> lines{coloured(title, kBold, screen.look)};
  // The chosen one is always among those that there is room for.
  const size_t shown = std::min(pools.size(), std::max<size_t>(room, 2) - 1);
  const size_t first = std::min(chosen >= shown ? chosen - shown + 1 : 0, pools.size() - shown);
  for (size_t at = first; at < first + shown; ++at) {
    std::string line;
    for (const Placed& its : columns) {
      std::string cell = its.column->cell(screen, pools[at], its.width);
      if (its.column == kColumns && at == chosen)
        cell = screen.look.colour ? coloured(cell, kReverse, screen.look)
                                  : ">" + its.column->cell(screen, pools[at], its.width - 1);
      line += (line.empty() ? "" : " ") + cell;
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

std::vector<std::string> detail_lines(const TopScreen& screen, const ShownPool& pool) {
  const size_t bar_width = std::clamp<size_t>(screen.width, 30, 110) - 20;
  std::vector<std::string> lines;
  const auto say = [&](std::string_view name, const std::string& text) {
    lines.push_back(cut(fmt::format("{:<8} {}", name, text), screen.width));
  };
  const auto bar = [&](std::string_view name, const std::string& drawn, const std::string& share) {
    if (screen.width >= bar_width + 15) lines.push_back(fmt::format("{:<8} {} {:>5}", name, drawn, share));
  };
  lines.push_back(coloured(cut(pool.now->name, screen.width), kBold, screen.look));
  bar("memory", memory_bar(screen, pool, bar_width),
      format_percent(pool.number("used_bytes"), pool.number("size_bytes")));
  if (pool.number("spill_size_bytes") > 0)
    bar("disk", disk_bar(screen, pool, bar_width),
        format_percent(pool.number("spill_used_bytes"), pool.number("spill_size_bytes")));
  bar("hits", hits_over_time(screen, pool, bar_width),
      format_percent(pool.since("opens_hit"), pool.since("opens_hit") + pool.since("lookups_missed")));
  say("memory",
      fmt::format("{} of {}, {} pinned, {} can be evicted", pool.size("used_bytes"), pool.size("size_bytes"),
                  pool.size("pinned_bytes"), pool.size("evictable_bytes")));
  if (pool.number("spill_size_bytes") > 0)
    say("disk",
        fmt::format("{} of {}, {} dirty, {} cold", pool.size("spill_used_bytes"),
                    pool.size("spill_size_bytes"), pool.size("dirty_bytes"), pool.size("cold_bytes")));
  say("entries", fmt::format("{}, {} open, policy {}", pool.number("entries"), pool.number("open_entries"),
                             pool.now->stats.text("policy")));
  say("rates", fmt::format("{} hits/s, {} misses/s, {} created/s, {} removed/s",
                           per_second(pool.rate("opens_hit")), per_second(pool.rate("lookups_missed")),
                           per_second(pool.rate("creates")), per_second(pool.rate("removes"))));
  say("leave", fmt::format("{} evicted/s, {} of them for good/s",
                           per_second(pool.rate("evictions") + pool.rate("discards")),
                           per_second(pool.rate("discards"))));
  if (pool.number("spill_size_bytes") > 0)
    say("moved", fmt::format("{}/s spilled, {}/s promoted", bytes_per_second(pool.rate("spilled_bytes")),
                             bytes_per_second(pool.rate("promoted_bytes"))));
  return lines;
}

std::string foot(const TopScreen& screen) {
  const char* const sort[] = {"name", "used", "hits", "rate"};
  std::string text = screen.choice.in_detail
                         ? std::string("q quit  Enter back  arrows: other pool")
                         : fmt::format("q quit  Enter pool  by {}: n name u used h hits r rate",
                                       sort[static_cast<size_t>(screen.choice.sort)]);
  return cut(text, screen.width);
}

}  // namespace

void HitHistory::add(const TopReading& now, const TopReading& before) {
  std::map<std::string, std::deque<std::optional<double>>, std::less<>> kept;
  for (const ShownPool& pool : pools_of(now, &before)) {
    auto& shares = kept[pool.now->name];
    if (const auto found = shares_.find(pool.now->name); found != shares_.end())
      shares = std::move(found->second);
    const uint64_t hits = pool.since("opens_hit"), all = hits + pool.since("lookups_missed");
    shares.push_back(all == 0 ? std::nullopt
                              : std::optional(static_cast<double>(hits) / static_cast<double>(all)));
    if (shares.size() > kKept) shares.pop_front();
  }
  shares_ = std::move(kept);
}

std::vector<std::optional<double>> HitHistory::of(std::string_view pool) const {
  const auto found = shares_.find(pool);
  if (found == shares_.end()) return {};
  return {found->second.begin(), found->second.end()};
}

std::vector<std::string> sorted_pools(const TopReading& now, const TopReading* before, TopSort sort) {
  std::vector<ShownPool> pools = pools_of(now, before);
  sort_pools(pools, sort);
  std::vector<std::string> names;
  for (const ShownPool& pool : pools) names.push_back(pool.now->name);
  return names;
}

std::string top_screen(const TopScreen& screen) {
  std::vector<ShownPool> pools = pools_of(screen.now, screen.before);
  sort_pools(pools, screen.choice.sort);
  size_t chosen = 0;
  for (size_t at = 0; at < pools.size(); ++at)
    if (pools[at].now->name == screen.choice.pool) chosen = at;
  std::vector<std::string> lines = head_lines(screen);
  const bool in_detail = screen.choice.in_detail && !pools.empty();
  const double seconds = pools.empty() ? 0 : pools.front().seconds;
  std::vector<std::string> latencies =
      latency_lines(screen, in_detail ? &pools[chosen].now->name : nullptr, seconds);
  for (std::string& line : latencies) line = cut(line, screen.width);
  const size_t below = latencies.size() + 3;  // an empty line before each, and the keys
  const size_t room = screen.height > lines.size() + below ? screen.height - lines.size() - below : 0;
  std::ranges::move(in_detail ? detail_lines(screen, pools[chosen]) : list_lines(screen, pools, chosen, room),
                    std::back_inserter(lines));
  lines.emplace_back();
  std::ranges::move(latencies, std::back_inserter(lines));
  // The keys are the last line, whatever there is no room for.
  if (lines.size() + 2 > screen.height) lines.resize(screen.height > 1 ? screen.height - 1 : 0);
  while (lines.size() + 1 < screen.height) lines.emplace_back();
  lines.push_back(foot(screen));
  std::string out;
  for (const std::string& line : lines) out += line + '\n';
  return out;
}

}  // namespace kvcachefs
