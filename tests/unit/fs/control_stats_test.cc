#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "fs/control/pool_stats.h"
#include "fs/control/server_files.h"
#include "fs/control/stats.h"

namespace kvcachefs::control_stats_test {

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
  uint64_t value = 1000;  // each has one that no other has
  for (const PoolStat& stat : kPoolStats)
    if (stat.is_counter()) (counters.*std::get<PoolStat::Counter>(stat.member)).store(++value);
  counters.opens_hit = 101;
  counters.lookups_missed = 102;
  counters.creates = 103;
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
                 .supervisor_pid = getppid(),
                 .generation = 3};
  server.pool_count = [] { return size_t{2}; };
  server.pool_reports = [] { return std::vector{sample_report("a"), sample_report("b")}; };
  return server;
}

std::string shown(const ControlledServer& server, std::string_view name) {
  const auto file = std::ranges::find(server_files(), name, &ServerFile::name);
  if (file == server_files().end()) return "no such file";
  return (*file->open(server))->read(0, 1 << 20);
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

TEST(PoolStats, TheTableHasEveryCounterOnce) {
  static_assert(std::is_standard_layout_v<PoolCounters>);
  PoolCounters counters;
  size_t rows = 0;
  for (const PoolStat& stat : kPoolStats) {
    if (!stat.is_counter()) continue;
    ++rows;
    EXPECT_EQ((counters.*std::get<PoolStat::Counter>(stat.member))++, 0u) << stat.name;
  }
  const size_t histograms_at = offsetof(PoolCounters, open_ns);
  EXPECT_EQ(rows, histograms_at / sizeof(std::atomic<uint64_t>));
  EXPECT_EQ(std::size(kPoolHistograms), (sizeof(PoolCounters) - histograms_at) / sizeof(Histogram));
}

TEST(PoolStats, NamesAreUniqueAndHelpIsASentence) {
  std::set<std::string_view> names;
  for (const PoolStat& stat : kPoolStats) {
    EXPECT_THAT(std::string(stat.name), testing::MatchesRegex("[a-z_]+"));
    EXPECT_TRUE(names.insert(stat.name).second) << stat.name;
    if (stat.is_word()) {
      EXPECT_EQ(stat.help, "") << stat.name;
    } else {
      EXPECT_THAT(std::string(stat.help), testing::MatchesRegex("[A-Z1].+[^ ][.]")) << stat.name;
    }
  }
}

// The three forms say the same: each number of the table, with its value, in the table's order.
TEST(PoolStats, EachIsInTheTextTheJsonAndTheMetrics) {
  const PoolReport report = sample_report();
  const std::vector<std::string> lines = lines_of(render_text(report.stats));
  const auto json = nlohmann::ordered_json::parse(render_json(report.stats));
  const std::vector<std::string> metrics =
      lines_of(render_metrics(make_server_stats({}, 1, 0), std::vector{report}));
  ASSERT_EQ(lines.size(), std::size(kPoolStats));
  ASSERT_EQ(json.size(), std::size(kPoolStats));
  auto member = json.begin();
  for (size_t row = 0; row < lines.size(); ++row, ++member) {
    const std::string name(kPoolStats[row].name);
    EXPECT_EQ(member.key(), name);
    if (kPoolStats[row].is_word()) {
      EXPECT_EQ(lines[row], name + " " + member->get<std::string>());
      continue;
    }
    const std::string value = member->dump();
    EXPECT_EQ(lines[row], name + " " + value);
    if (name == "reservation_wait_ns") continue;  // in seconds there
    const bool is_counter = kPoolStats[row].is_counter();
    const std::string metric = "kvcachefs_" + name + (is_counter ? "_total" : "");
    EXPECT_TRUE(holds(metrics, metric + "{pool=\"llama\"} " + value)) << metric;
    EXPECT_TRUE(holds(metrics, "# TYPE " + metric + (is_counter ? " counter" : " gauge"))) << metric;
    EXPECT_TRUE(holds(metrics, "# HELP " + metric + " " + std::string(kPoolStats[row].help))) << metric;
  }
}

TEST(ControlStats, TextShowsWhatWasMeasured) {
  const std::vector<std::string> lines = lines_of(render_text(sample_report().stats));
  for (const char* line :
       {"size_bytes 100", "used_bytes 60", "pinned_max_bytes 50", "open_entries 2", "policy lfu",
        "opens_hit 101", "lookups_missed 102", "creates 103", "reservation_wait_ns 2500000000",
        "entry_size_bytes 4096", "huge_bytes 24", "spill_size_bytes 201", "spill_largest_free_run_bytes 204",
        "dirty_bytes 206", "cold_bytes 210", "disk_failed 1", "disk_away 0", "disk_restoring 0",
        "io_mode passthrough"}) {
    EXPECT_TRUE(holds(lines, line)) << line;
  }
  EXPECT_EQ(lines.front(), "size_bytes 100");
  EXPECT_EQ(lines.back(), "io_mode passthrough");
}

TEST(ControlStats, ServerTextAndVersion) {
  const ControlledServer server = sample_server();
  EXPECT_EQ(shown(server, "version"), "kvcachefs 0.1.0\n");
  EXPECT_EQ(render_text(make_server_stats(server.info, 2, 62'999'999'999)),
            "version 0.1.0\nio_mode daemon\ntransport io_uring\nthreads 4\npoll_us 20\npools 2\n"
            "memory_bytes 1073741824\nmemory_reserve_bytes 0\nuptime_s 61\npid 77\nsupervisor_pid " +
                std::to_string(getppid()) + "\ngeneration 3\n");
  ControlledServer orphan = server;
  orphan.info.supervisor_pid = getpid();  // not the parent
  EXPECT_TRUE(shown(orphan, "stats").contains("\nsupervisor_pid 0\n"));
  EXPECT_TRUE(shown(server, "stats").starts_with("version 0.1.0\nio_mode daemon\n"));
}

TEST(ControlStats, FilesAreReadOnlyButForRoot) {
  for (const ServerFile& file : server_files()) {
    EXPECT_EQ(file.of_administrator, file.name == "configure" || file.name == "access_log") << file.name;
    if (file.of_administrator) {
      EXPECT_EQ(file.mode(Authority::kAdministrator), file.name == "configure" ? 0600u : 0400u) << file.name;
      continue;
    }
    EXPECT_EQ(file.mode(), 0444u) << file.name;
    EXPECT_EQ(file.write, nullptr) << file.name;
  }
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
  EXPECT_TRUE(holds(lines, "kvcachefs_creates_total{pool=\"b\"} 103"));
  EXPECT_TRUE(holds(lines, "kvcachefs_policy{pool=\"a\",policy=\"lfu\"} 1"));
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

}  // namespace kvcachefs::control_stats_test
