#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

#include "fs/control/entries_reader.h"
#include "fs/control/orders.h"
#include "fs/control/pool_files.h"
#include "tests/support/pools_test.h"

namespace kvcachefs::control_pool_files_test {

class PoolFiles : public test::PoolsTest {
 protected:
  void SetUp() override {
    PoolsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    PoolOptions its = options("p", 16 * kMiB);
    its.size_max_bytes = 32 * kMiB;
    pool_ = make(its);
    ASSERT_NE(pool_, nullptr);
  }

  const PoolFile& file(std::string_view name) {
    const auto found = std::ranges::find(pool_files(), name, &PoolFile::name);
    if (found == pool_files().end()) throw std::runtime_error("no file " + std::string(name));
    return *found;
  }
  ControlledPool target() {
    return {.pool = pool_, .pools = *pools_, .authority = authority_, .io_mode = "daemon"};
  }
  std::string shown(std::string_view name) {
    ControlledPool its = target();
    return (*file(name).open(its))->read(0, 1 << 20);
  }
  Result<void> write(std::string_view name, std::string_view text) {
    ControlledPool its = target();
    return file(name).write(its, text);
  }
  int code_of_write(std::string_view name, std::string_view text) {
    const Result<void> done = write(name, text);
    return done ? 0 : done.error().code;
  }
  void add_disk() { ASSERT_EQ(code_of_write("spill", spill_ + " 4M"), 0); }

  const std::string spill_ = disk_ / "a spill";
  Authority authority_ = Authority::kAdministrator;
  std::shared_ptr<Pool> pool_;
};

TEST_F(PoolFiles, AreThoseOfTheContract) {
  std::map<std::string, mode_t> modes;
  for (const PoolFile& each : pool_files()) modes.emplace(each.name, each.mode());
  const std::map<std::string, mode_t> expected = {{"size", 0644},
                                                  {"policy", 0644},
                                                  {"watermarks", 0644},
                                                  {"entry_size", 0644},
                                                  {"evict", 0644},
                                                  {"spill", 0644},
                                                  {"durability", 0644},
                                                  {"admission", 0644},
                                                  {"auto_prefetch", 0644},
                                                  {"prefetch", 0644},
                                                  {"scrub", 0644},
                                                  {"pinned_max", 0644},
                                                  {"stats", 0444},
                                                  {"stats.json", 0444},
                                                  {"numa", 0444},
                                                  {"entries", 0400},
                                                  {"size_max", 0444},
                                                  {"max_entries", 0644},
                                                  {"max_directories", 0644},
                                                  {"max_xattr_bytes", 0644},
                                                  {"max_xattrs", 0644},
                                                  {"user_share", 0644},
                                                  {"users", 0444},
                                                  {"settings", 0444},
                                                  {"reset", 0644},
                                                  {"match", 0666},
                                                  {"similar", 0666},
                                                  {"forget_agent", 0644},
                                                  {"index", 0666},
                                                  {"leaf_first", 0644}};
  EXPECT_EQ(modes, expected);
  modes.clear();
  for (const PoolFile& each : pool_files())
    if (each.of_administrator) modes.emplace(each.name, each.mode(Authority::kAdministrator));
  const std::map<std::string, mode_t> administrators = {
      {"size", 0600},  {"size_max", 0600}, {"reset", 0600},  {"pinned_max", 0600},
      {"spill", 0600}, {"scrub", 0600},    {"entries", 0400}};
  EXPECT_EQ(modes, administrators);
}

TEST_F(PoolFiles, AnOwnerOrdersNoDiskTierAndNoHigherRate) {
  authority_ = Authority::kOwner;
  EXPECT_EQ(code_of_write("spill", spill_ + " 4M"), EPERM);
  EXPECT_NE(write("spill", spill_ + " 4M").error().message.find(".kvcachefs/pools/p/spill"),
            std::string::npos);
  EXPECT_EQ(shown("spill"), "none\n");
  authority_ = Authority::kAdministrator;
  add_disk();
  authority_ = Authority::kOwner;
  EXPECT_EQ(code_of_write("scrub", "start 201M"), EPERM);
  EXPECT_TRUE(shown("scrub").starts_with("state idle\n"));
  EXPECT_EQ(code_of_write("scrub", "start 200M"), 0);
  EXPECT_EQ(shown("size_max"), "32M\n");
}

TEST_F(PoolFiles, ShowTheSettings) {
  EXPECT_EQ(shown("size"), "16M\n");
  EXPECT_EQ(shown("policy"), "lru\n");
  EXPECT_EQ(shown("watermarks"), "95:98\n");
  EXPECT_EQ(shown("entry_size"), "auto\n");
  EXPECT_EQ(shown("pinned_max"), "50%\n");
  EXPECT_EQ(shown("max_entries"), "0\n");
  EXPECT_EQ(shown("max_directories"), "0\n");
  EXPECT_EQ(shown("user_share"), "0%\n");
  EXPECT_EQ(shown("max_xattr_bytes"), "256K\n");
  EXPECT_EQ(shown("max_xattrs"), "256\n");
  EXPECT_EQ(shown("leaf_first"), "off\n");
  EXPECT_EQ(shown("evict"), "evicted 0 entries 0\n");
  EXPECT_EQ(shown("spill"), "none\n");
  EXPECT_EQ(shown("durability"), "none\n");
  EXPECT_EQ(shown("admission"), "all\n");
  EXPECT_EQ(shown("auto_prefetch"), "on\n");
  add_disk();
  EXPECT_EQ(shown("spill"), spill_ + " 4M\n");
  EXPECT_EQ(shown("durability"), "writeback\n");
}

TEST_F(PoolFiles, WhatIsWrittenIsShown) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"size", "8M\n", "8M\n"},           {"size", " 1.5M ", "1.5M\n"},
      {"size", "25%", "16M\n"},           {"policy", "priority\n", "priority\n"},
      {"watermarks", "50:60", "50:60\n"}, {"entry_size", "2M\n", "2M\n"},
      {"watermarks", "1:100", "1:100\n"}, {"policy", "lfu", "lfu\n"},
      {"entry_size", "auto\n", "auto\n"}, {"pinned_max", "70%\n", "70%\n"},
      {"pinned_max", "0", "0%\n"},        {"max_entries", "1000\n", "1000\n"},
      {"max_directories", "7", "7\n"},    {"max_xattr_bytes", "4K", "4K\n"},
      {"max_xattrs", "0", "0\n"},         {"max_entries", "0", "0\n"},
      {"user_share", "30", "30%\n"},      {"user_share", "0%", "0%\n"},
  };
  for (const auto& [name, text, after] : cases) {
    EXPECT_EQ(code_of_write(name, text), 0) << name << " " << text;
    EXPECT_EQ(shown(name), after);
  }
}

TEST_F(PoolFiles, WhatIsShownCanBeWritten) {
  for (const bool with_disk : {false, true}) {
    if (with_disk) add_disk();
    for (const PoolSetting& setting : pool_settings()) {
      if (!setting.is_live()) continue;
      ASSERT_NE(file(setting.file).write, nullptr) << setting.key;
      if (!setting.is_shown()) continue;
      EXPECT_EQ(code_of_write(setting.file, shown(setting.file)), 0) << setting.key;
    }
  }
}

TEST_F(PoolFiles, ADiskTierIsAttachedAndSet) {
  ASSERT_EQ(code_of_write("spill", spill_ + " 4M\nspill_unit=1M\n"), 0);
  EXPECT_EQ(shown("spill"), spill_ + " 4M\n");
  EXPECT_EQ(pool_->settings().options().spill_unit_bytes, 1u << 20);
  EXPECT_EQ(code_of_write("spill", "8M\n"), EBUSY) << "it has one";
  EXPECT_EQ(code_of_write("spill", "none"), EOPNOTSUPP);
  EXPECT_EQ(shown("spill"), spill_ + " 4M\n");
  ASSERT_EQ(code_of_write("durability", "sync\n"), 0);
  EXPECT_EQ(shown("durability"), "sync\n");
  ASSERT_EQ(code_of_write("admission", "tinylfu\n"), 0);
  EXPECT_EQ(shown("admission"), "tinylfu\n");
  ASSERT_EQ(code_of_write("auto_prefetch", "off\n"), 0);
  EXPECT_EQ(shown("auto_prefetch"), "off\n");
}

TEST_F(PoolFiles, WithoutADiskTierItsOrdersAreRefused) {
  const std::vector<std::array<std::string, 2>> orders = {{"durability", "sync"},   {"admission", "tinylfu"},
                                                          {"auto_prefetch", "off"}, {"prefetch", "a\n"},
                                                          {"scrub", "start"},       {"scrub", "stop"}};
  for (const auto& [name, text] : orders) {
    const Result<void> done = write(name, text);
    ASSERT_FALSE(done) << name;
    EXPECT_EQ(done.error().code, EOPNOTSUPP) << name;
    EXPECT_EQ(done.error().message, "pool p has no disk tier");
  }
  EXPECT_EQ(shown("prefetch"), "queued 0\ndone 0\nfailed 0\ndropped 0\nbytes 0\n");
  EXPECT_EQ(shown("scrub"),
            "state idle\nentries_done 0\nentries_total 0\nbytes 0\ndamaged 0\nunreadable 0\n");
}

TEST_F(PoolFiles, PrefetchesByName) {
  add_disk();
  const auto orders =
      parse_prefetch_orders("a\nb/c 5\nwith blank\twords\t-7\n\n  \nx y\n./d//e/ 1\nb\\\\\\t\\n\\q 2\nlast");
  ASSERT_TRUE(orders);
  std::string seen;
  for (const PrefetchOrder& order : *orders) seen += order.name + "|" + std::to_string(order.priority) + ";";
  EXPECT_EQ(seen, "a|0;b/c|5;with blank\twords|-7;x y|0;d/e/|1;b\\\t\n\\q|2;last|0;");
  for (const char* text : {"/a", "..", "../b", "a/../../b", "a 1001", "a -1001", "a\n/b\n"})
    EXPECT_EQ(code_of_write("prefetch", text), EINVAL) << text;
  EXPECT_EQ(code_of_write("prefetch", ""), 0);
  EXPECT_TRUE(shown("prefetch").starts_with("queued 0\ndone 0\nfailed 0\n"));
  EXPECT_EQ(code_of_write("prefetch", "a\nb/c 5\n"), 0);
  EXPECT_TRUE(shown("prefetch").starts_with("queued 0\ndone 0\nfailed 2\n")) << "there are none";
  for (const std::string name : {"plain", "a\\b", "tab\t5", "line\n7", "blank 3", "\\n"}) {
    const auto read = parse_prefetch_orders(prefetch_line({name, -3}));
    ASSERT_TRUE(read);
    ASSERT_EQ(read->size(), 1u);
    EXPECT_EQ(read->front().name, name);
    EXPECT_EQ(read->front().priority, -3);
  }
}

TEST_F(PoolFiles, ScrubsAreStartedAndStopped) {
  add_disk();
  EXPECT_EQ(parse_scrub_order("start 50M\n").value().rate_bytes_per_s, 50u << 20);
  EXPECT_EQ(parse_scrub_order("start").value().rate_bytes_per_s, kDefaultScrubBytesPerSecond);
  ASSERT_EQ(code_of_write("scrub", "start 50M\n"), 0);
  EXPECT_EQ(shown("scrub"),
            "state running\nentries_done 0\nentries_total 0\nbytes 0\ndamaged 0\nunreadable 0\n");
  EXPECT_EQ(code_of_write("scrub", "start"), EBUSY);
  ASSERT_EQ(code_of_write("scrub", "stop"), 0);
  EXPECT_TRUE(shown("scrub").starts_with("state idle\n"));
  ASSERT_EQ(code_of_write("scrub", "start"), 0);
}

TEST_F(PoolFiles, WrongValuesChangeNothing) {
  const std::string before = shown("stats") + shown("watermarks") + shown("entry_size") + shown("pinned_max");
  const std::vector<std::array<std::string, 2>> cases = {
      {"size", ""},
      {"size", "lots"},
      {"size", "-1"},
      {"size", "1K"},
      {"size", "64Q"},
      {"size", "0"},
      {"size", "8G 9G"},
      {"size", "101%"},
      {"policy", ""},
      {"policy", "mru"},
      {"policy", "LRU"},
      {"policy", "lru lfu"},
      {"watermarks", "98"},
      {"watermarks", "99:98"},
      {"watermarks", "0:98"},
      {"watermarks", "1:101"},
      {"watermarks", "a:b"},
      {"watermarks", "50:60:70"},
      {"watermarks", "-1:50"},
      {"entry_size", "big"},
      {"entry_size", "0"},
      {"entry_size", "-2M"},
      {"pinned_max", "101%"},
      {"pinned_max", "-1%"},
      {"pinned_max", "half"},
      {"user_share", "101%"},
      {"user_share", "-1"},
      {"evict", ""},
      {"evict", "all"},
      {"evict", "101%"},
      {"spill", ""},
      {"spill", "relative 1G"},
      {"spill", "/x 1G\nsize=1G"},
      {"durability", ""},
      {"durability", "fast"},
      {"admission", "none"},
      {"prefetch", "/a"},
      {"scrub", ""},
      {"scrub", "start 0"},
      {"scrub", "start fast"},
      {"scrub", "started"},
      {"scrub", "stop 1M"},
      {"evict", "10G entries"},
      {"evict", "entries"},
      {"evict", "-1"},
      {"max_entries", ""},
      {"max_entries", "-1"},
      {"max_entries", "1K"},
      {"max_entries", "1 2"},
      {"max_directories", "all"},
      {"max_directories", "-1"},
      {"max_xattr_bytes", "257K"},
      {"max_xattrs", "257"},
      {"max_xattrs", "-1"},
      {"leaf_first", "maybe"},
  };
  for (const auto& [name, text] : cases) {
    const Result<void> done = write(name, text);
    ASSERT_FALSE(done) << name << " '" << text << "'";
    EXPECT_EQ(done.error().code, EINVAL);
    EXPECT_TRUE(done.error().message.starts_with("pool p: " + name + ": ")) << done.error().message;
  }
  EXPECT_EQ(code_of_write("auto_prefetch", "1"), EINVAL);
  EXPECT_EQ(shown("stats") + shown("watermarks") + shown("entry_size") + shown("pinned_max"), before);
}

TEST_F(PoolFiles, ASettersRefusalIsHandedOn) {
  const Result<void> done = write("size", "128M");
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, EINVAL);
  EXPECT_EQ(
      done.error().message,
      "pool p: 128M and the other pools' 0 are more than the memory, 64M, without the memory_reserve of 0");
  EXPECT_EQ(shown("size"), "16M\n");
}

TEST_F(PoolFiles, ALearnedEntrySizeIsShownBesideAuto) {
  pool_->capacity().stored(2 * kMiB);
  EXPECT_EQ(shown("entry_size"), "auto 2M\n");
  ASSERT_EQ(code_of_write("entry_size", "4M"), 0);
  EXPECT_EQ(shown("entry_size"), "4M\n");
}

TEST_F(PoolFiles, EvictOrders) {
  using Unit = EvictOrder::Unit;
  const std::vector<std::tuple<const char*, Unit, uint64_t>> cases = {
      {"25%\n", Unit::kPercent, 25},
      {"10G\n", Unit::kBytes, uint64_t{10} << 30},
      {"1000 entries\n", Unit::kEntries, 1000},
      {"1000\n", Unit::kEntries, 1000},
      {"7entries", Unit::kEntries, 7}};
  for (const auto& [text, unit, amount] : cases) {
    const auto order = parse_evict_order(text);
    ASSERT_TRUE(order) << text;
    EXPECT_EQ(order->unit, unit);
    EXPECT_EQ(order->amount, amount);
    EXPECT_EQ(code_of_write("evict", text), 0) << text;
  }
  EXPECT_EQ(shown("evict"), "evicted 0 entries 0\n");
  EXPECT_NE(shown("stats").find("\nevict_orders 5\n"), std::string::npos);
}

TEST_F(PoolFiles, NumaIsALineANode) {
  EXPECT_EQ(shown("numa"), "node 0 bytes 0 huge 0\n");
}

TEST_F(PoolFiles, StatsComeInBothForms) {
  EXPECT_TRUE(shown("stats").starts_with("size_bytes 16777216\n"));
  EXPECT_TRUE(shown("stats").ends_with("io_mode daemon\n"));
  EXPECT_TRUE(shown("stats.json").starts_with("{\"size_bytes\":16777216,"));
}

TEST_F(PoolFiles, ReadsArePositioned) {
  ControlledPool its = target();
  const auto reader = *file("policy").open(its);
  EXPECT_EQ(reader->read(0, 2), "lr");
  EXPECT_EQ(reader->read(2, 10), "u\n");
  EXPECT_EQ(reader->read(4, 10), "");
  EXPECT_EQ(reader->read(1000, 10), "");
}

TEST_F(PoolFiles, EntriesAreListed) {
  EntryListing plain;
  plain.name = "a/b";
  plain.size_bytes = 4096;
  plain.node = 1;
  plain.hits = 3;
  plain.age_s = 60;
  plain.priority = -5;
  plain.pinned = true;
  EntryListing odd;
  odd.name = "tab\there\nline\\end";
  EXPECT_EQ(shown("entries"), "name size tier node hits age_s priority pinned\n");
  EXPECT_EQ(render_entry(plain), "a/b\t4096\tdirty\t1\t3\t60\t-5\t1\n");
  EXPECT_EQ(render_entry(odd), "tab\\there\\nline\\\\end\t0\tdirty\t0\t0\t0\t0\t0\n");
}

}  // namespace kvcachefs::control_pool_files_test
