#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "fs/control/metrics.h"
#include "fs/control/server_files.h"
#include "fs/control/stats.h"
#include "fs/control/stats_json.h"

namespace kvcachefs {
namespace {

PoolReport sample_report(std::string name = "llama") {
  PoolOptions options;
  options.name = std::move(name);
  options.policy = "lfu";
  const PoolUsage usage = {.size_bytes = 100,
                           .used_bytes = 60,
                           .free_bytes = 40,
                           .evictable_bytes = 30,
                           .pinned_bytes = 5,
                           .pinned_max_bytes = 50,
                           .entries = 7,
                           .open_entries = 2};
  const SpillUsage spill = {.size_bytes = 201,
                            .used_bytes = 202,
                            .free_bytes = 203,
                            .largest_free_run_bytes = 204,
                            .dirty_entries = 205,
                            .dirty_bytes = 206,
                            .clean_entries = 207,
                            .clean_bytes = 208,
                            .cold_entries = 209,
                            .cold_bytes = 210,
                            .failed = true};
  PoolCounters counters;
  uint64_t value = 100;
  for (std::atomic<uint64_t>* counter : {&counters.opens_hit,
                                         &counters.lookups_missed,
                                         &counters.creates,
                                         &counters.removes,
                                         &counters.evictions,
                                         &counters.discards,
                                         &counters.discarded_bytes,
                                         &counters.reservations,
                                         &counters.reservation_waits,
                                         &counters.reservation_wait_ns,
                                         &counters.reservation_failures,
                                         &counters.evict_orders,
                                         &counters.spills,
                                         &counters.spilled_bytes,
                                         &counters.spill_errors,
                                         &counters.promotes,
                                         &counters.promoted_bytes,
                                         &counters.promote_errors,
                                         &counters.promote_waits,
                                         &counters.served_from_disk,
                                         &counters.checksum_errors,
                                         &counters.disk_discards,
                                         &counters.overrun_discards,
                                         &counters.admitted_bytes,
                                         &counters.refused_bytes,
                                         &counters.prefetch_useful,
                                         &counters.prefetch_wasted,
                                         &counters.catalog_commits,
                                         &counters.catalog_errors,
                                         &counters.no_space_errors,
                                         &counters.directories_reclaimed}) {
    counter->store(++value);
  }
  counters.reservation_wait_ns = 2'500'000'000;
  counters.open_ns.record(1000);
  counters.open_ns.record(5000);
  counters.create_ns.record(UINT64_MAX / 2);
  counters.promote_ns.record(3000);
  return make_pool_report(options, usage, counters, 4096, {{0, 10, 8}, {1, 20, 16}}, spill, "passthrough");
}

ControlledServer sample_server() {
  ControlledServer server;
  server.info = {.version = "0.1.0",
                 .io_mode = "daemon",
                 .transport = "io_uring",
                 .threads = 4,
                 .poll_us = 20,
                 .memory_bytes = 1 << 30,
                 .started_ns = 1'000'000'000,
                 .pid = 77,
                 .supervisor_pid = 76,
                 .generation = 3};
  server.pool_count = [] { return size_t{2}; };
  server.pool_reports = [] { return std::vector{sample_report("a"), sample_report("b")}; };
  return server;
}

std::string shown(const ControlledServer& server, std::string_view name) {
  const ServerFile* file = find_control_file(server_files(), name);
  if (file == nullptr) return "no such file";
  return (*file->open(server))->read(0, 1 << 20);
}

TEST(ControlStats, TextHasEveryPoolStatInOrder) {
  EXPECT_EQ(
      render_text(sample_report().stats),
      "size_bytes 100\nused_bytes 60\nfree_bytes 40\nevictable_bytes 30\npinned_bytes 5\npinned_max_bytes "
      "50\n"
      "entries 7\nopen_entries 2\npolicy lfu\nopens_hit 101\nlookups_missed 102\ncreates 103\nremoves 104\n"
      "evictions 105\ndiscards 106\ndiscarded_bytes 107\ndirectories_reclaimed 131\nreservations "
      "108\nreservation_waits 109\n"
      "reservation_wait_ns 2500000000\nreservation_failures 111\nno_space_errors 130\nevict_orders "
      "112\nentry_size_bytes 4096\n"
      "huge_bytes 24\n"
      "spill_size_bytes 201\nspill_used_bytes 202\nspill_free_bytes 203\nspill_largest_free_run_bytes 204\n"
      "dirty_entries 205\ndirty_bytes 206\nclean_entries 207\nclean_bytes 208\ncold_entries 209\n"
      "cold_bytes 210\n"
      "spills 113\nspilled_bytes 114\nspill_errors 115\npromotes 116\npromoted_bytes 117\n"
      "promote_errors 118\npromote_waits 119\nserved_from_disk 120\nchecksum_errors 121\n"
      "disk_discards 122\noverrun_discards 123\nadmitted_bytes 124\nrefused_bytes 125\n"
      "prefetch_useful 126\nprefetch_wasted 127\ncatalog_commits 128\ncatalog_errors 129\n"
      "disk_failed 1\n"
      "disk_away 0\n"
      "io_mode passthrough\n");
}

TEST(ControlStats, ServerTextAndVersion) {
  const ControlledServer server = sample_server();
  EXPECT_EQ(shown(server, "version"), "kvcachefs 0.1.0\n");
  EXPECT_EQ(render_text(make_server_stats(server.info, 2, 62'999'999'999)),
            "version 0.1.0\nio_mode daemon\ntransport io_uring\nthreads 4\npoll_us 20\npools 2\n"
            "memory_bytes 1073741824\nuptime_s 61\npid 77\nsupervisor_pid 76\ngeneration 3\n");
  EXPECT_TRUE(shown(server, "stats").starts_with("version 0.1.0\nio_mode daemon\n"));
}

TEST(ControlStats, FilesAreReadOnly) {
  for (const ServerFile& file : server_files()) {
    EXPECT_EQ(file.mode(), 0444u) << file.name;
    EXPECT_EQ(file.write, nullptr) << file.name;
  }
  EXPECT_EQ(find_control_file(server_files(), "stat"), nullptr);
}

TEST(ControlStats, JsonSaysTheSame) {
  const std::string text = render_json(sample_report().stats);
  ASSERT_TRUE(text.ends_with("}\n"));
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json.size(), sample_report().stats.size());
  EXPECT_EQ(json["size_bytes"], 100);
  EXPECT_EQ(json["policy"], "lfu");
  EXPECT_EQ(json["reservation_wait_ns"], 2'500'000'000);
}

TEST(ControlStats, JsonEscapesAndNeverThrows) {
  EXPECT_EQ(render_json(Stats{{"policy", std::string("a\"\\\n\xff")}}),
            "{\"policy\":\"a\\\"\\\\\\n\xef\xbf\xbd\"}\n");
  EXPECT_EQ(render_json(Stats{{"size_bytes", UINT64_MAX}}), "{\"size_bytes\":18446744073709551615}\n");
}

TEST(ControlStats, ServerJsonHoldsThePools) {
  const auto json = nlohmann::json::parse(shown(sample_server(), "stats.json"));
  EXPECT_EQ(json["io_mode"], "daemon");
  EXPECT_EQ(json["threads"], 4);
  ASSERT_TRUE(json["pools"].is_object());
  EXPECT_EQ(json["pools"].size(), 2u);
  EXPECT_EQ(json["pools"]["b"]["entries"], 7);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

bool holds(const std::vector<std::string>& lines, const std::string& line) {
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST(ControlMetrics, ShowEveryNumberWithItsPool) {
  const std::vector<std::string> lines = lines_of(shown(sample_server(), "metrics"));
  EXPECT_TRUE(holds(lines, "kvcachefs_info{version=\"0.1.0\",io_mode=\"daemon\",transport=\"io_uring\"} 1"));
  EXPECT_TRUE(holds(lines, "kvcachefs_memory_bytes 1073741824"));
  EXPECT_TRUE(holds(lines, "# TYPE kvcachefs_used_bytes gauge"));
  EXPECT_TRUE(holds(lines, "kvcachefs_used_bytes{pool=\"a\"} 60"));
  EXPECT_TRUE(holds(lines, "kvcachefs_used_bytes{pool=\"b\"} 60"));
  EXPECT_TRUE(holds(lines, "# TYPE kvcachefs_opens_hit_total counter"));
  EXPECT_TRUE(holds(lines, "kvcachefs_opens_hit_total{pool=\"a\"} 101"));
  EXPECT_TRUE(holds(lines, "kvcachefs_reservation_wait_seconds_total{pool=\"a\"} 2.5"));
  EXPECT_TRUE(holds(lines, "kvcachefs_node_bytes{pool=\"b\",node=\"1\"} 20"));
  EXPECT_TRUE(holds(lines, "# TYPE kvcachefs_cold_bytes gauge"));
  EXPECT_TRUE(holds(lines, "kvcachefs_cold_bytes{pool=\"b\"} 210"));
  EXPECT_TRUE(holds(lines, "kvcachefs_checksum_errors_total{pool=\"b\"} 121"));
  EXPECT_TRUE(holds(lines, "kvcachefs_policy{pool=\"a\",policy=\"lfu\"} 1"));
}

// Every number of a pool's statistics must be a metric, so that a new number cannot be forgotten.
TEST(ControlMetrics, LeaveNoNumberOut) {
  const PoolReport report = sample_report();
  const std::string text = render_metrics(make_server_stats(sample_server().info, 1, 0), std::vector{report});
  size_t numbers = 0;
  for (const Stat& stat : report.stats) numbers += std::holds_alternative<uint64_t>(stat.value) ? 1 : 0;
  std::set<std::string> names;
  for (const std::string& line : lines_of(text)) {
    const size_t name_end = line.find("{pool=\"llama\"} ");
    if (name_end != std::string::npos) names.insert(line.substr(0, name_end));
  }
  EXPECT_EQ(names.size(), numbers + 6);  // plus a sum and a count of each histogram
}

TEST(ControlMetrics, HistogramsAreCumulative) {
  const std::vector<std::string> lines = lines_of(shown(sample_server(), "metrics"));
  EXPECT_TRUE(holds(lines, "# TYPE kvcachefs_open_seconds histogram"));
  EXPECT_TRUE(holds(lines, "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"5.12e-07\"} 0"));
  EXPECT_TRUE(holds(lines, "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"1.024e-06\"} 1"));
  EXPECT_TRUE(holds(lines, "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"8.192e-06\"} 2"));
  EXPECT_TRUE(holds(lines, "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"+Inf\"} 2"));
  EXPECT_TRUE(holds(lines, "kvcachefs_open_seconds_sum{pool=\"a\"} 6e-06"));
  EXPECT_TRUE(holds(lines, "kvcachefs_open_seconds_count{pool=\"a\"} 2"));
  EXPECT_TRUE(holds(lines, "kvcachefs_create_seconds_bucket{pool=\"a\",le=\"274.877906944\"} 0"));
  EXPECT_TRUE(holds(lines, "kvcachefs_create_seconds_bucket{pool=\"a\",le=\"+Inf\"} 1"));
  EXPECT_TRUE(holds(lines, "kvcachefs_promote_seconds_sum{pool=\"a\"} 3e-06"));
}

// Each family occurs once: HELP, TYPE, then its samples in one piece, as the format asks.
TEST(ControlMetrics, AreWellFormed) {
  const std::string text = shown(sample_server(), "metrics");
  ASSERT_TRUE(text.ends_with("\n"));
  const auto sample =
      testing::MatchesRegex("kvcachefs_[a-z_]+([{][a-z]+=\"[^\"]*\"(,[a-z_]+=\"[^\"]*\")*[}])? [0-9.e+-]+");
  std::set<std::string> families;
  std::string family;
  for (const std::string& line : lines_of(text)) {
    std::istringstream words(line);
    std::string hash, kind, name;
    words >> hash >> kind >> name;
    if (hash != "#") {
      EXPECT_THAT(line, sample);
      EXPECT_TRUE(line.starts_with(family)) << line;
    } else if (kind == "HELP") {
      EXPECT_THAT(line, testing::MatchesRegex("# HELP kvcachefs_[a-z_]+ .+[.]"));
      EXPECT_TRUE(families.insert(name).second) << "twice: " << name;
      family = name;
    } else {
      EXPECT_THAT(line, testing::MatchesRegex("# TYPE kvcachefs_[a-z_]+ (gauge|counter|histogram)"));
      EXPECT_EQ(name, family);
    }
  }
  EXPECT_GT(families.size(), 25u);
}

TEST(ControlMetrics, LabelsAreEscaped) {
  PoolReport report = sample_report("a\"b\\c\nd");
  const std::vector<std::string> lines =
      lines_of(render_metrics(make_server_stats(sample_server().info, 1, 0), std::vector{report}));
  EXPECT_TRUE(holds(lines, "kvcachefs_used_bytes{pool=\"a\\\"b\\\\c\\nd\"} 60"));
}

TEST(ControlMetrics, WithoutPoolsThereAreOnlyTheDaemonsOwn) {
  const std::string text = render_metrics(make_server_stats(sample_server().info, 0, 0), {});
  EXPECT_NE(text.find("kvcachefs_info{"), std::string::npos);
  EXPECT_EQ(text.find("pool=\""), std::string::npos);
}

}  // namespace
}  // namespace kvcachefs
