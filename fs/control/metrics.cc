#include "fs/control/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

namespace kvcachefs {
namespace {

enum class Kind { kGauge, kCounter };

// A Metric is a number of the statistics under the name and unit that Prometheus' conventions ask for.
struct Metric {
  std::string_view stat;
  std::string_view name;
  Kind kind;
  std::string_view help;
  uint64_t divisor = 1;
};

constexpr std::array kServerMetrics = {
    Metric{"memory_bytes", "kvcachefs_memory_bytes", Kind::kGauge, "Memory that pools may share."},
    Metric{"uptime_s", "kvcachefs_uptime_seconds", Kind::kGauge, "Time since the daemon started."},
    Metric{"threads", "kvcachefs_threads", Kind::kGauge, "Threads that serve requests."},
    Metric{"pools", "kvcachefs_pools", Kind::kGauge, "Pools."},
};

constexpr std::array kPoolMetrics = {
    Metric{"size_bytes", "kvcachefs_size_bytes", Kind::kGauge, "Memory the pool may use."},
    Metric{"used_bytes", "kvcachefs_used_bytes", Kind::kGauge, "Memory in use."},
    Metric{"free_bytes", "kvcachefs_free_bytes", Kind::kGauge, "Memory not in use."},
    Metric{"evictable_bytes", "kvcachefs_evictable_bytes", Kind::kGauge, "Memory that eviction could free."},
    Metric{"pinned_bytes", "kvcachefs_pinned_bytes", Kind::kGauge, "Memory of pinned entries."},
    Metric{"pinned_max_bytes", "kvcachefs_pinned_max_bytes", Kind::kGauge, "Memory that may be pinned."},
    Metric{"entries", "kvcachefs_entries", Kind::kGauge, "Entries."},
    Metric{"open_entries", "kvcachefs_open_entries", Kind::kGauge, "Entries that somebody has open."},
    Metric{"entry_size_bytes", "kvcachefs_entry_size_bytes", Kind::kGauge, "Expected size of a new entry."},
    Metric{"huge_bytes", "kvcachefs_huge_bytes", Kind::kGauge, "Memory in huge pages."},
    Metric{"opens_hit", "kvcachefs_opens_hit_total", Kind::kCounter, "Opens of an entry that was there."},
    Metric{"lookups_missed", "kvcachefs_lookups_missed_total", Kind::kCounter,
           "Lookups of a name that was not there and that the kernel did not remember as missing."},
    Metric{"creates", "kvcachefs_creates_total", Kind::kCounter, "Entries created."},
    Metric{"removes", "kvcachefs_removes_total", Kind::kCounter,
           "Entries deleted or replaced by their users."},
    Metric{"evictions", "kvcachefs_evictions_total", Kind::kCounter,
           "Memory copies dropped of entries that have another."},
    Metric{"discards", "kvcachefs_discards_total", Kind::kCounter, "Entries whose last copy was dropped."},
    Metric{"discarded_bytes", "kvcachefs_discarded_bytes_total", Kind::kCounter,
           "Bytes of dropped last copies."},
    Metric{"directories_reclaimed", "kvcachefs_directories_reclaimed_total", Kind::kCounter,
           "Empty directories removed for their inodes."},
    Metric{"reservations", "kvcachefs_reservations_total", Kind::kCounter,
           "Claims of memory made before an entry was created."},
    Metric{"reservation_waits", "kvcachefs_reservation_waits_total", Kind::kCounter,
           "Claims that had to wait for eviction."},
    Metric{"reservation_wait_ns", "kvcachefs_reservation_wait_seconds_total", Kind::kCounter,
           "Time that claims waited.", 1'000'000'000},
    Metric{"reservation_failures", "kvcachefs_reservation_failures_total", Kind::kCounter,
           "Claims that found no memory."},
    Metric{"no_space_errors", "kvcachefs_no_space_errors_total", Kind::kCounter,
           "Times that a client was told ENOSPC, or met the end of the memory."},
    Metric{"evict_orders", "kvcachefs_evict_orders_total", Kind::kCounter, "Evictions ordered by hand."},
};

// Metrics of the disk tier.
constexpr std::array kSpillMetrics = {
    Metric{"spill_size_bytes", "kvcachefs_spill_size_bytes", Kind::kGauge, "Disk space the pool may use."},
    Metric{"spill_used_bytes", "kvcachefs_spill_used_bytes", Kind::kGauge, "Disk space in use."},
    Metric{"spill_free_bytes", "kvcachefs_spill_free_bytes", Kind::kGauge, "Disk space not in use."},
    Metric{"spill_largest_free_run_bytes", "kvcachefs_spill_largest_free_run_bytes", Kind::kGauge,
           "A large piece of free disk space: a quarter of the largest or more."},
    Metric{"dirty_entries", "kvcachefs_dirty_entries", Kind::kGauge, "Entries in memory only."},
    Metric{"dirty_bytes", "kvcachefs_dirty_bytes", Kind::kGauge, "Bytes of entries in memory only."},
    Metric{"clean_entries", "kvcachefs_clean_entries", Kind::kGauge, "Entries in memory and on disk."},
    Metric{"clean_bytes", "kvcachefs_clean_bytes", Kind::kGauge, "Bytes of entries in memory and on disk."},
    Metric{"cold_entries", "kvcachefs_cold_entries", Kind::kGauge, "Entries on disk only."},
    Metric{"cold_bytes", "kvcachefs_cold_bytes", Kind::kGauge, "Bytes of entries on disk only."},
    Metric{"spills", "kvcachefs_spills_total", Kind::kCounter, "Entries written to disk."},
    Metric{"spilled_bytes", "kvcachefs_spilled_bytes_total", Kind::kCounter,
           "Bytes of entries written to disk."},
    Metric{"spill_errors", "kvcachefs_spill_errors_total", Kind::kCounter, "Writes to disk that failed."},
    Metric{"promotes", "kvcachefs_promotes_total", Kind::kCounter, "Entries read back into memory."},
    Metric{"promoted_bytes", "kvcachefs_promoted_bytes_total", Kind::kCounter,
           "Bytes of entries read back into memory."},
    Metric{"promote_errors", "kvcachefs_promote_errors_total", Kind::kCounter,
           "Reads from disk that failed."},
    Metric{"promote_waits", "kvcachefs_promote_waits_total", Kind::kCounter,
           "Opens that waited for the disk."},
    Metric{"served_from_disk", "kvcachefs_served_from_disk_total", Kind::kCounter,
           "Opens that found no memory for the entry and read the disk."},
    Metric{"checksum_errors", "kvcachefs_checksum_errors_total", Kind::kCounter,
           "Entries whose bytes on disk were not those that were written."},
    Metric{"disk_discards", "kvcachefs_disk_discards_total", Kind::kCounter,
           "Entries dropped because the disk tier was full."},
    Metric{"overrun_discards", "kvcachefs_overrun_discards_total", Kind::kCounter,
           "Entries dropped because the disk was slower than the writers."},
    Metric{"admitted_bytes", "kvcachefs_admitted_bytes_total", Kind::kCounter,
           "Bytes that were let onto the disk."},
    Metric{"refused_bytes", "kvcachefs_refused_bytes_total", Kind::kCounter,
           "Bytes that admission kept from the disk."},
    Metric{"prefetch_useful", "kvcachefs_prefetch_useful_total", Kind::kCounter,
           "Entries promoted ahead of an open that came."},
    Metric{"prefetch_wasted", "kvcachefs_prefetch_wasted_total", Kind::kCounter,
           "Entries promoted ahead of an open that did not come."},
    Metric{"catalog_commits", "kvcachefs_catalog_commits_total", Kind::kCounter,
           "Transactions of the catalog."},
    Metric{"catalog_errors", "kvcachefs_catalog_errors_total", Kind::kCounter,
           "Transactions of the catalog that failed."},
    Metric{"disk_failed", "kvcachefs_disk_failed", Kind::kGauge,
           "1 if the disk tier gets nothing more until the pool starts again."},
    Metric{"disk_away", "kvcachefs_disk_away", Kind::kGauge,
           "1 while the pool is served without its disk, which is tried again."},
};

// The escapes are Prometheus' own for the value of a label.
std::string escaped(std::string_view value) {
  std::string result;
  for (const char character : value) {
    if (character == '\n') {
      result += "\\n";
    } else {
      if (character == '\\' || character == '"') result += '\\';
      result += character;
    }
  }
  return result;
}

const Stat* find(const Stats& stats, std::string_view name) {
  const auto found = std::ranges::find(stats, name, &Stat::name);
  return found == stats.end() ? nullptr : &*found;
}

uint64_t number(const Stats& stats, std::string_view name) {
  const Stat* stat = find(stats, name);
  const uint64_t* value = stat != nullptr ? std::get_if<uint64_t>(&stat->value) : nullptr;
  return value != nullptr ? *value : 0;
}

std::string word(const Stats& stats, std::string_view name) {
  const Stat* stat = find(stats, name);
  const std::string* value = stat != nullptr ? std::get_if<std::string>(&stat->value) : nullptr;
  return value != nullptr ? *value : "";
}

std::string in_units(uint64_t value, uint64_t divisor) {
  if (divisor == 1) return std::to_string(value);
  return fmt::format("{}", static_cast<double>(value) / static_cast<double>(divisor));
}

class Writer {
 public:
  template <class... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }

  void head(std::string_view name, std::string_view type, std::string_view help) {
    line("# HELP {} {}", name, help);
    line("# TYPE {} {}", name, type);
  }

  void head(const Metric& metric) {
    head(metric.name, metric.kind == Kind::kCounter ? "counter" : "gauge", metric.help);
  }

  void numbers(const Metric& metric, std::span<const PoolReport> pools) {
    head(metric);
    for (const PoolReport& pool : pools) {
      line("{}{{pool=\"{}\"}} {}", metric.name, escaped(pool.name),
           in_units(number(pool.stats, metric.stat), metric.divisor));
    }
  }

  void histogram(std::string_view name, std::string_view help, std::span<const PoolReport> pools,
                 HistogramSnapshot PoolReport::*member) {
    head(name, "histogram", help);
    for (const PoolReport& pool : pools) {
      const HistogramSnapshot& snapshot = pool.*member;
      const std::string label = escaped(pool.name);
      uint64_t up_to = 0;
      // The last bucket has no upper bound.
      for (size_t index = 0; index + 1 < snapshot.buckets.size(); ++index) {
        up_to += snapshot.buckets[index];
        line("{}_bucket{{pool=\"{}\",le=\"{}\"}} {}", name, label,
             in_units(HistogramSnapshot::upper_bound_ns(index), 1'000'000'000), up_to);
      }
      line("{}_bucket{{pool=\"{}\",le=\"+Inf\"}} {}", name, label, snapshot.count);
      line("{}_sum{{pool=\"{}\"}} {}", name, label, in_units(snapshot.sum_ns, 1'000'000'000));
      line("{}_count{{pool=\"{}\"}} {}", name, label, snapshot.count);
    }
  }

  void nodes(std::string_view name, std::string_view help, std::span<const PoolReport> pools,
             uint64_t NodeUsage::*member) {
    head(name, "gauge", help);
    for (const PoolReport& pool : pools) {
      for (const NodeUsage& node : pool.nodes) {
        line("{}{{pool=\"{}\",node=\"{}\"}} {}", name, escaped(pool.name), node.node, node.*member);
      }
    }
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

}  // namespace

std::string render_metrics(const Stats& server, std::span<const PoolReport> pools) {
  Writer writer;
  writer.head("kvcachefs_info", "gauge", "What runs, and how it serves reads and writes.");
  writer.line("kvcachefs_info{{version=\"{}\",io_mode=\"{}\",transport=\"{}\"}} 1",
              escaped(word(server, "version")), escaped(word(server, "io_mode")),
              escaped(word(server, "transport")));
  for (const Metric& metric : kServerMetrics) {
    writer.head(metric);
    writer.line("{} {}", metric.name, in_units(number(server, metric.stat), metric.divisor));
  }
  writer.head("kvcachefs_policy", "gauge", "The pool's eviction policy.");
  for (const PoolReport& pool : pools) {
    writer.line("kvcachefs_policy{{pool=\"{}\",policy=\"{}\"}} 1", escaped(pool.name),
                escaped(word(pool.stats, "policy")));
  }
  for (const Metric& metric : kPoolMetrics) writer.numbers(metric, pools);
  for (const Metric& metric : kSpillMetrics) writer.numbers(metric, pools);
  writer.nodes("kvcachefs_node_bytes", "Memory of the pool on a node.", pools, &NodeUsage::bytes);
  writer.nodes("kvcachefs_node_huge_bytes", "Memory of the pool in huge pages on a node.", pools,
               &NodeUsage::huge_bytes);
  writer.histogram("kvcachefs_open_seconds", "Time the daemon took to answer an open.", pools,
                   &PoolReport::open_ns);
  writer.histogram("kvcachefs_create_seconds", "Time the daemon took to answer a create.", pools,
                   &PoolReport::create_ns);
  writer.histogram("kvcachefs_promote_seconds", "Time from asking for an entry to having it in memory.",
                   pools, &PoolReport::promote_ns);
  return writer.take();
}

}  // namespace kvcachefs
