// The screen of `kvcachefs top`, and the command with keys on a screen that is none.
#include "daemon/cli/top_view.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <deque>

#include "base/key_value.h"
#include "tests/unit/daemon/cli_fixture.h"

namespace kvcachefs::top_view_test {

// Of UTF-8, without orders to the terminal.
size_t columns_of(std::string_view line) {
  size_t columns = 0;
  bool in_order = false;
  for (const char c : line) {
    if (c == '\033') in_order = true;
    if (!in_order && (static_cast<unsigned char>(c) & 0xc0) != 0x80) ++columns;
    if (in_order && c == 'm') in_order = false;
  }
  return columns;
}

std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) lines.emplace_back(take_part(text, '\n'));
  return lines;
}

TopReading reading_of(double time_s, const std::vector<std::pair<std::string, std::string>>& pools) {
  TopReading reading;
  reading.sample = {time_s, "/mnt/kv", StatsReading::parse("version 0.1.0\nuptime_s 10\nthreads 4\n"), {}};
  for (const auto& [name, stats] : pools) reading.sample.pools.push_back({name, StatsReading::parse(stats)});
  return reading;
}

const std::string kBusy =
    "size_bytes 1000\nused_bytes 500\npinned_bytes 250\nentries 7\nopens_hit 90\nlookups_missed 10\ncreates "
    "20\n";
const std::string kOnDisk = kBusy + "spill_size_bytes 4000\nspill_used_bytes 1000\n";

std::vector<std::pair<std::string, std::string>> many_pools() {
  std::vector<std::pair<std::string, std::string>> pools;
  for (int i = 0; i < 50; ++i)
    pools.emplace_back(fmt::format("{}{:02}", std::string(62, 'p'), i), i % 2 == 0 ? kBusy : kOnDisk);
  return pools;
}

TEST(TopView, KeepsToTheTerminal) {
  const HitHistory history;
  const std::vector<std::vector<std::pair<std::string, std::string>>> cases = {
      {}, {{"a", kBusy}}, {{"a", ""}, {"b", "size_bytes 0\nused_bytes 5\n"}}, many_pools()};
  for (const auto& pools : cases) {
    const TopReading now = reading_of(10, pools);
    for (const size_t width : {1u, 20u, 40u, 80u, 200u}) {
      for (const size_t height : {1u, 5u, 24u, 100u}) {
        for (const bool in_detail : {false, true}) {
          for (const Look look : {Look{}, Look{.unicode = true, .colour = true}}) {
            const TopChoice choice{.in_detail = in_detail};
            const auto lines = lines_of(top_screen({now, nullptr, history, choice, width, height, look}));
            EXPECT_EQ(lines.size(), height) << pools.size() << " pools, width " << width;
            for (const std::string& line : lines)
              EXPECT_LE(columns_of(line), width) << height << (in_detail ? " detail: " : ": ") << line;
          }
        }
      }
    }
  }
}

TEST(TopView, DrawsWhatIsUsed) {
  const HitHistory history;
  const TopReading now = reading_of(10, {{"a", kBusy}, {"b", kOnDisk}});
  const auto lines = lines_of(top_screen({now, nullptr, history, {}, 40, 24, {}}));
  EXPECT_EQ(lines[0], "kvcachefs 0.1.0 at /mnt/kv:  over , 4 t~");
  EXPECT_EQ(lines[3].substr(0, 8), "POOL    ");
  EXPECT_TRUE(lines[4].starts_with(">a      ")) << lines[4];
  EXPECT_NE(lines[4].find("PP"), std::string::npos) << lines[4];
  EXPECT_NE(lines[4].find("50%"), std::string::npos) << lines[4];
  EXPECT_NE(lines.back().find("q quit"), std::string::npos);
  const auto wide = lines_of(top_screen({now, nullptr, history, {}, 200, 24, {}}));
  for (const char* title : {"POOL", "MEMORY", "SIZE", "PINNED", "DISK%", "ENTRIES", "OPEN", "HIT/s", "MISS/s",
                            "HITS", "MAKE/s", "EVICT/s", "SPILL/s", "PROMOTE/s"})
    EXPECT_NE(wide[3].find(title), std::string::npos) << title << " is missing: " << wide[3];
  const std::string memory_only =
      top_screen({reading_of(1, {{"a", kBusy}}), nullptr, history, {}, 200, 24, {}});
  EXPECT_EQ(memory_only.find("DISK"), std::string::npos);
}

TEST(TopView, ShowsTheChosenPoolOfMany) {
  const HitHistory history;
  const TopReading now = reading_of(10, many_pools());
  for (const int chosen : {0, 7, 49}) {
    const std::string name = fmt::format("{}{:02}", std::string(62, 'p'), chosen);
    const std::string view = top_screen({now, nullptr, history, {.pool = name}, 200, 24, {}});
    EXPECT_NE(view.find(fmt::format("\n>{}", name.substr(0, 20))), std::string::npos) << chosen << view;
  }
}

TEST(TopView, CountsBetweenTheReadings) {
  HitHistory history;
  TopReading before = reading_of(10, {{"a", kBusy}});
  TopReading now =
      reading_of(12, {{"a", "size_bytes 1000\nopens_hit 96\nlookups_missed 12\n"}, {"new", kBusy}});
  before.histograms = parse_histograms(
      "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"1\"} 5\n"
      "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"2\"} 5\n"
      "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"+Inf\"} 5\n");
  now.histograms = parse_histograms(
      "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"1\"} 5\n"
      "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"2\"} 9\n"
      "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"+Inf\"} 9\n");
  history.add(now, before);
  ASSERT_EQ(history.of("a").size(), 1u);
  EXPECT_DOUBLE_EQ(*history.of("a")[0], 0.75);
  const std::string view = top_screen({now, &before, history, {.pool = "a", .in_detail = true}, 80, 30, {}});
  EXPECT_NE(view.find("rates    3.0 hits/s, 1.0 misses/s, "), std::string::npos) << view;
  EXPECT_NE(view.find(" 75%\n"), std::string::npos) << view;
  EXPECT_NE(view.find("open        1.5s    2.0s     2.0\n"), std::string::npos) << view;
  EXPECT_NE(view.find("promote        -       -       0\n"), std::string::npos) << view;
}

TEST(TopView, Sorts) {
  const TopReading now = reading_of(10, {{"b", "used_bytes 3\nopens_hit 1\n"},
                                         {"a", "used_bytes 1\nopens_hit 2\ncreates 50\n"},
                                         {"c", "used_bytes 2\nopens_hit 3\n"}});
  using Names = std::vector<std::string>;
  EXPECT_EQ(sorted_pools(now, nullptr, TopSort::kName), (Names{"a", "b", "c"}));
  EXPECT_EQ(sorted_pools(now, nullptr, TopSort::kUsed), (Names{"b", "c", "a"}));
  EXPECT_EQ(sorted_pools(now, nullptr, TopSort::kHits), (Names{"c", "a", "b"}));
  EXPECT_EQ(sorted_pools(now, nullptr, TopSort::kRate), (Names{"a", "c", "b"}));
}

TEST(Bars, HaveTheirWidth) {
  EXPECT_EQ(usage_bar(25, 50, 100, 8, {}), "PP##....");
  EXPECT_EQ(usage_bar(0, 1, 1000, 8, {}), "#.......") << "what is there is seen";
  EXPECT_EQ(usage_bar(0, 0, 0, 4, {}), "....");
  EXPECT_EQ(usage_bar(9, 2000, 1000, 4, {}), "P###") << "more than fits";
  EXPECT_EQ(usage_bar(0, 50, 100, 4, {.unicode = true}), "██░░");
  EXPECT_EQ(usage_bar(0, 100, 100, 2, {.colour = true}), "\033[33m##\033[0m");
  const std::optional<double> values[] = {0.0, std::nullopt, 0.5, 1.0};
  EXPECT_EQ(spark_line(values, 6, {}), "  _ =#");
  EXPECT_EQ(spark_line(values, 2, {.unicode = true}), "▅█");
  EXPECT_EQ(fitted("abcdef", 4), "abc~");
  EXPECT_EQ(fitted_right("ab", 4), "  ab");
}

TEST(HistogramReading, TellsOfTheTimeBetween) {
  const auto of = [](uint64_t one, uint64_t two, uint64_t all) {
    HistogramReading reading;
    reading.add_bucket(0.001, one);
    reading.add_bucket(0.002, two);
    reading.add_bucket(HUGE_VAL, all);
    return reading;
  };
  EXPECT_EQ(of(0, 0, 0).quantile(0.5), std::nullopt);
  EXPECT_DOUBLE_EQ(*of(0, 100, 100).quantile(0.5), 0.0015);
  EXPECT_DOUBLE_EQ(*of(10, 110, 110).since(of(10, 10, 10)).quantile(0.5), 0.0015);
  EXPECT_DOUBLE_EQ(*of(0, 1, 100).quantile(0.99), 0.002) << "beyond the last bound nothing is known";
  EXPECT_EQ(of(1, 1, 1).since(of(5, 5, 5)).count(), 1u) << "the pool was made anew";
  for (const char* wrong :
       {"", "kvcachefs_open_seconds_bucket{", "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"x\"} 1",
        "kvcachefs_open_seconds_bucket{pool=\"a\",le=\"1\"} -1", "le=\"} pool=\"",
        "kvcachefs_\",le=\"_seconds_bucket{pool=\"\"} "})
    EXPECT_TRUE(parse_histograms(wrong).empty()) << wrong;
  EXPECT_EQ(format_latency(0.0000032), "3.2us");
  EXPECT_EQ(format_latency(0.41), "410ms");
  EXPECT_EQ(format_latency(12), "12s");
  EXPECT_EQ(format_latency(5e-8), "50ns");
}

// Gives the keys that it was told, one a view, and keeps what was shown.
class ScriptedScreen final : public Screen {
 public:
  ScriptedScreen(std::deque<Pressed> keys, std::vector<std::string>& shown)
      : keys_(std::move(keys)), shown_(shown) {}
  Size size() const override { return {80, 24}; }
  Look look() const override { return {}; }
  void show(const std::string& lines) override { shown_.push_back(lines); }
  Pressed key(double) override {
    if (keys_.empty()) return {Key::kEnd};
    const Pressed next = keys_.front();
    keys_.pop_front();
    return next;
  }

 private:
  std::deque<Pressed> keys_;
  std::vector<std::string>& shown_;
};

class TopTest : public CliTest {
 protected:
  Outcome top(std::deque<Screen::Pressed> keys) {
    shown_.clear();
    open_screen_ = [this, keys] { return std::make_unique<ScriptedScreen>(keys, shown_); };
    return run({"top", "--interval", "3600"});
  }
  std::vector<std::string> shown_;
};

TEST_F(TopTest, FollowsTheKeys) {
  using Key = Screen::Key;
  mount_.add_pool("a");
  mount_.add_pool("b");
  const Outcome result = top({{Key::kDown},
                              {Key::kEnter},
                              {Key::kDown},
                              {Key::kUp},
                              {Key::kEnter},
                              {Key::kLetter, 'u'},
                              {Key::kLetter, 'x'},
                              {Key::kLetter, 'q'},
                              {Key::kEnter}});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.out, "");
  ASSERT_EQ(shown_.size(), 8u) << "q ends it";
  EXPECT_NE(shown_[0].find("\n>a"), std::string::npos) << shown_[0];
  EXPECT_NE(shown_[1].find("\n>b"), std::string::npos) << shown_[1];
  EXPECT_NE(shown_[2].find("\nb\n"), std::string::npos) << shown_[2];
  EXPECT_NE(shown_[4].find("\na\n"), std::string::npos) << shown_[4];
  EXPECT_NE(shown_[6].find("by used"), std::string::npos) << shown_[6];
}

TEST_F(TopTest, EndsWithItsTerminalAndWithTheMount) {
  EXPECT_EQ(top({}).exit_code, 0);
  EXPECT_NE(shown_.at(0).find("There is no pool"), std::string::npos) << shown_[0];
  std::filesystem::remove_all(mount_.root() / ".kvcachefs");
  EXPECT_EQ(top({}).exit_code, 3);
}

TEST_F(TopTest, ShowsATextWithoutATerminal) {
  mount_.add_pool("a");
  open_screen_ = [] { return nullptr; };
  EXPECT_NE(run({"top"}).out.find("HITS/s"), std::string::npos);
  open_screen_ = [this] { return std::make_unique<ScriptedScreen>(std::deque<Screen::Pressed>{}, shown_); };
  EXPECT_NE(run({"top", "--once"}).out.find("HITS/s"), std::string::npos);
}

}  // namespace kvcachefs::top_view_test
