#include "fs/control/stats.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/escape.h"
#include "fs/control/pool_stats.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kNsPerSecond = 1'000'000'000;

// A Metric is a number of the statistics under the name and unit that Prometheus' conventions ask for.
struct Metric {
  Metric(std::string_view of, bool is_counter) : stat(of), name(fmt::format("kvcachefs_{}", of)) {
    if (stat.ends_with("_ns")) divisor = kNsPerSecond;
    if (const size_t unit = name.rfind('_'); stat.ends_with("_ns") || stat.ends_with("_s"))
      name.replace(unit, std::string::npos, "_seconds");
    if (is_counter) name += "_total";
  }

  std::string_view stat;
  std::string name;
  uint64_t divisor = 1;
};

std::string label_value(std::string_view text) {
  return escaped(text, "\\\"");
}

template <class Value>
Value value_in(const Stats& stats, std::string_view name) {
  const auto found = std::ranges::find(stats, name, &Stat::name);
  const Value* value = found == stats.end() ? nullptr : std::get_if<Value>(&found->value);
  return value == nullptr ? Value() : *value;
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

  void numbers(const PoolStat& stat, std::span<const PoolReport> pools) {
    const Metric metric(stat.name, stat.is_counter());
    head(metric.name, stat.is_counter() ? "counter" : "gauge", stat.help);
    for (const PoolReport& pool : pools) {
      line("{}{{pool=\"{}\"}} {}", metric.name, label_value(pool.name),
           in_units(value_in<uint64_t>(pool.stats, metric.stat), metric.divisor));
    }
  }

  void histogram(size_t which, std::span<const PoolReport> pools) {
    const std::string name = Metric(kPoolHistograms[which].name, false).name;
    head(name, "histogram", kPoolHistograms[which].help);
    for (const PoolReport& pool : pools) {
      const HistogramSnapshot& snapshot = pool.histograms[which];
      const std::string label = label_value(pool.name);
      uint64_t up_to = 0;
      // The last bucket has no upper bound.
      for (size_t index = 0; index + 1 < snapshot.buckets.size(); ++index) {
        up_to += snapshot.buckets[index];
        line("{}_bucket{{pool=\"{}\",le=\"{}\"}} {}", name, label,
             in_units(HistogramSnapshot::upper_bound_ns(index), kNsPerSecond), up_to);
      }
      line("{}_bucket{{pool=\"{}\",le=\"+Inf\"}} {}", name, label, snapshot.count);
      line("{}_sum{{pool=\"{}\"}} {}", name, label, in_units(snapshot.sum_ns, kNsPerSecond));
      line("{}_count{{pool=\"{}\"}} {}", name, label, snapshot.count);
    }
  }

  void nodes(std::string_view name, std::string_view help, std::span<const PoolReport> pools,
             uint64_t NodeUsage::*member) {
    head(name, "gauge", help);
    for (const PoolReport& pool : pools) {
      for (const NodeUsage& node : pool.nodes) {
        line("{}{{pool=\"{}\",node=\"{}\"}} {}", name, label_value(pool.name), node.node, node.*member);
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
              label_value(value_in<std::string>(server, "version")),
              label_value(value_in<std::string>(server, "io_mode")),
              label_value(value_in<std::string>(server, "transport")));
  for (const Stat& stat : server) {
    if (stat.help.empty()) continue;
    const Metric metric(stat.name, false);
    writer.head(metric.name, "gauge", stat.help);
    writer.line("{} {}", metric.name, in_units(std::get<uint64_t>(stat.value), metric.divisor));
  }
  writer.head("kvcachefs_policy", "gauge", "The pool's eviction policy.");
  for (const PoolReport& pool : pools) {
    writer.line("kvcachefs_policy{{pool=\"{}\",policy=\"{}\"}} 1", label_value(pool.name),
                label_value(value_in<std::string>(pool.stats, "policy")));
  }
  for (const bool memory : {true, false})
    for (const PoolStat& stat : kPoolStats)
      if (!stat.is_word() && stat.is_memory_gauge() == memory) writer.numbers(stat, pools);
  writer.nodes("kvcachefs_node_bytes", "Memory of the pool on a node.", pools, &NodeUsage::bytes);
  writer.nodes("kvcachefs_node_huge_bytes", "Memory of the pool in huge pages on a node.", pools,
               &NodeUsage::huge_bytes);
  for (size_t which = 0; which < std::size(kPoolHistograms); ++which) writer.histogram(which, pools);
  return writer.take();
}

}  // namespace kvcachefs
