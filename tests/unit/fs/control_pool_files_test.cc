#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "fs/control/orders.h"
#include "fs/control/pool_files.h"

namespace kvcachefs::control_pool_files_test {

constexpr uint64_t kMemoryBytes = uint64_t{64} << 30;

class FakePool final : public ControlledPool {
 public:
  FakePool() {
    options_.name = "p";
    options_.size_bytes = uint64_t{16} << 30;
    options_.size_max_bytes = uint64_t{32} << 30;
  }

  Authority authority() override { return authority_; }
  PoolOptions options() override { return options_; }
  PoolReport report() override {
    return make_pool_report(options_, {.size_bytes = options_.size_bytes}, counters_, learned_bytes_, nodes_,
                            {}, "daemon");
  }
  uint64_t learned_entry_bytes() override { return learned_bytes_; }
  std::vector<NodeUsage> numa_usage() override { return nodes_; }
  EvictResult last_evict() override { return last_evict_; }
  size_t listing_shards() override { return shards_.size(); }
  std::vector<EntryListing> list_entries(size_t shard) override { return shards_.at(shard); }
  uint64_t memory_bytes() override { return kMemoryBytes; }

  Result<void> apply(std::string_view, const PoolOptions& wanted) override {
    if (wanted.size_bytes < (uint64_t{2} << 30)) return fail(EBUSY, "pool p: 2G are pinned or in use");
    if (wanted.spill_size_bytes > (uint64_t{100} << 30)) return fail(ENOSPC, "pool p: the disk is smaller");
    options_ = wanted;
    return {};
  }
  EvictResult evict_now(EvictOrder order) override {
    orders_.push_back(order);
    last_evict_ = {12, uint64_t{24} << 20};
    return last_evict_;
  }

  Result<void> prefetch(std::span<const PrefetchOrder> orders) override {
    prefetches_.insert(prefetches_.end(), orders.begin(), orders.end());
    return {};
  }
  PrefetchProgress prefetch_progress() override { return {1, 2, 3, 4, 5}; }
  Result<void> start_scrub(uint64_t rate_bytes_per_s) override {
    if (scrub_.running) return fail(EBUSY, "pool p: a scrub runs");
    scrub_ = {true, 10, 20, 4096, 1};
    scrub_rate_ = rate_bytes_per_s;
    return {};
  }
  Result<void> stop_scrub() override {
    scrub_.running = false;
    return {};
  }
  ScrubProgress scrub_progress() override { return scrub_; }

  void add_disk() {
    options_.spill_path = "/data/s";
    options_.spill_size_bytes = uint64_t{10} << 30;
  }

  Authority authority_ = Authority::kAdministrator;
  std::vector<PrefetchOrder> prefetches_;
  ScrubProgress scrub_;
  uint64_t scrub_rate_ = 0;
  PoolOptions options_;
  PoolCounters counters_;
  uint64_t learned_bytes_ = 0;
  std::vector<NodeUsage> nodes_;
  EvictResult last_evict_;
  std::vector<EvictOrder> orders_;
  std::vector<std::vector<EntryListing>> shards_;
};

class PoolFiles : public testing::Test {
 protected:
  const PoolFile& file(std::string_view name) {
    const auto found = std::ranges::find(pool_files(), name, &PoolFile::name);
    if (found == pool_files().end()) throw std::runtime_error("no file " + std::string(name));
    return *found;
  }
  std::string shown(std::string_view name) { return (*file(name).open(pool_))->read(0, 1 << 20); }
  Result<void> write(std::string_view name, std::string_view text) { return file(name).write(pool_, text); }
  int code_of_write(std::string_view name, std::string_view text) {
    const Result<void> done = write(name, text);
    return done ? 0 : done.error().code;
  }

  FakePool pool_;
};

TEST_F(PoolFiles, AreThoseOfTheContract) {
  std::map<std::string, mode_t> modes;
  for (const PoolFile& each : pool_files()) modes.emplace(each.name, each.mode());
  const std::map<std::string, mode_t> expected = {
      {"size", 0644},          {"policy", 0644},     {"watermarks", 0644}, {"entry_size", 0644},
      {"evict", 0644},         {"spill", 0644},      {"durability", 0644}, {"admission", 0644},
      {"auto_prefetch", 0644}, {"prefetch", 0644},   {"scrub", 0644},      {"pinned_max", 0644},
      {"stats", 0444},         {"stats.json", 0444}, {"numa", 0444},       {"entries", 0400},
      {"size_max", 0444}};
  EXPECT_EQ(modes, expected);
  modes.clear();
  for (const PoolFile& each : pool_files())
    if (each.of_administrator) modes.emplace(each.name, each.mode(Authority::kAdministrator));
  const std::map<std::string, mode_t> administrators = {{"size", 0600},       {"size_max", 0600},
                                                        {"pinned_max", 0600}, {"spill", 0600},
                                                        {"scrub", 0600},      {"entries", 0400}};
  EXPECT_EQ(modes, administrators);
}

TEST_F(PoolFiles, AnOwnerOrdersNoDiskTierAndNoHigherRate) {
  pool_.authority_ = Authority::kOwner;
  EXPECT_EQ(code_of_write("spill", "/data/s 10G"), EPERM);
  EXPECT_NE(write("spill", "/data/s 10G").error().message.find(".kvcachefs/pools/p/spill"),
            std::string::npos);
  EXPECT_EQ(shown("spill"), "none\n");
  pool_.add_disk();
  EXPECT_EQ(code_of_write("scrub", "start 201M"), EPERM);
  EXPECT_FALSE(pool_.scrub_.running);
  EXPECT_EQ(code_of_write("scrub", "start 200M"), 0);
  EXPECT_EQ(shown("size_max"), "32G\n");
}

TEST_F(PoolFiles, ShowTheSettings) {
  EXPECT_EQ(shown("size"), "16G\n");
  EXPECT_EQ(shown("policy"), "lru\n");
  EXPECT_EQ(shown("watermarks"), "95:98\n");
  EXPECT_EQ(shown("entry_size"), "auto\n");
  EXPECT_EQ(shown("pinned_max"), "50%\n");
  EXPECT_EQ(shown("evict"), "evicted 0 entries 0\n");
  EXPECT_EQ(shown("numa"), "");
  EXPECT_EQ(shown("spill"), "none\n");
  EXPECT_EQ(shown("durability"), "none\n");
  EXPECT_EQ(shown("admission"), "all\n");
  EXPECT_EQ(shown("auto_prefetch"), "on\n");
  pool_.add_disk();
  EXPECT_EQ(shown("spill"), "/data/s 10G\n");
  EXPECT_EQ(shown("durability"), "writeback\n");
}

TEST_F(PoolFiles, WhatIsWrittenIsShown) {
  const std::vector<std::array<std::string, 3>> cases = {
      {"size", "8G\n", "8G\n"},           {"size", " 1.5T ", "1.5T\n"},
      {"size", "25%", "16G\n"},           {"policy", "priority\n", "priority\n"},
      {"watermarks", "50:60", "50:60\n"}, {"entry_size", "2M\n", "2M\n"},
      {"entry_size", "auto\n", "auto\n"}, {"pinned_max", "70%\n", "70%\n"},
      {"pinned_max", "0", "0%\n"},
  };
  for (const auto& [name, text, after] : cases) {
    EXPECT_EQ(code_of_write(name, text), 0) << name << " " << text;
    EXPECT_EQ(shown(name), after);
  }
}

TEST_F(PoolFiles, WhatIsShownCanBeWritten) {
  for (const bool with_disk : {false, true}) {
    if (with_disk) pool_.add_disk();
    for (const PoolSetting& setting : pool_settings()) {
      if (!setting.is_live()) continue;
      ASSERT_NE(file(setting.file).write, nullptr) << setting.key;
      if (!setting.is_shown()) continue;
      EXPECT_EQ(code_of_write(setting.file, shown(setting.file)), 0) << setting.key;
    }
  }
}

TEST_F(PoolFiles, ADiskTierIsAttachedAndSet) {
  ASSERT_EQ(code_of_write("spill", "/data/a b 20G\nspill_unit=1M\n"), 0);
  EXPECT_EQ(shown("spill"), "/data/a b 20G\n");
  EXPECT_EQ(pool_.options_.spill_unit_bytes, 1u << 20);
  ASSERT_EQ(code_of_write("spill", "30G\n"), 0);
  EXPECT_EQ(shown("spill"), "/data/a b 30G\n");
  EXPECT_EQ(code_of_write("spill", "/data/a b 200G"), ENOSPC);
  EXPECT_EQ(code_of_write("spill", "none"), EOPNOTSUPP);
  EXPECT_EQ(shown("spill"), "/data/a b 30G\n");
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
  EXPECT_EQ(shown("prefetch"), "queued 1\ndone 2\nfailed 3\ndropped 4\nbytes 5\n");
  EXPECT_EQ(shown("scrub"),
            "state idle\nentries_done 0\nentries_total 0\nbytes 0\ndamaged 0\nunreadable 0\n");
}

TEST_F(PoolFiles, PrefetchesByName) {
  pool_.add_disk();
  ASSERT_EQ(code_of_write("prefetch",
                          "a\nb/c 5\nwith blank\twords\t-7\n\n  \nx y\n./d//e/ 1\nb\\\\\\t\\n\\q 2\nlast"),
            0);
  std::string seen;
  for (const PrefetchOrder& order : pool_.prefetches_)
    seen += order.name + "|" + std::to_string(order.priority) + ";";
  EXPECT_EQ(seen, "a|0;b/c|5;with blank\twords|-7;x y|0;d/e/|1;b\\\t\n\\q|2;last|0;");
  for (const char* text : {"/a", "..", "../b", "a/../../b", "a 1001", "a -1001", "a\n/b\n"}) {
    pool_.prefetches_.clear();
    EXPECT_EQ(code_of_write("prefetch", text), EINVAL) << text;
    EXPECT_TRUE(pool_.prefetches_.empty());
  }
  EXPECT_EQ(code_of_write("prefetch", ""), 0);
  for (const std::string name : {"plain", "a\\b", "tab\t5", "line\n7", "blank 3", "\\n"}) {
    pool_.prefetches_.clear();
    ASSERT_EQ(code_of_write("prefetch", prefetch_line({name, -3})), 0);
    ASSERT_EQ(pool_.prefetches_.size(), 1u);
    EXPECT_EQ(pool_.prefetches_[0].name, name);
    EXPECT_EQ(pool_.prefetches_[0].priority, -3);
  }
}

TEST_F(PoolFiles, ScrubsAreStartedAndStopped) {
  pool_.add_disk();
  ASSERT_EQ(code_of_write("scrub", "start 50M\n"), 0);
  EXPECT_EQ(pool_.scrub_rate_, 50u << 20);
  EXPECT_EQ(shown("scrub"),
            "state running\nentries_done 10\nentries_total 20\nbytes 4096\ndamaged 1\nunreadable 0\n");
  EXPECT_EQ(code_of_write("scrub", "start"), EBUSY);
  ASSERT_EQ(code_of_write("scrub", "stop"), 0);
  EXPECT_TRUE(shown("scrub").starts_with("state idle\n"));
  ASSERT_EQ(code_of_write("scrub", "start"), 0);
  EXPECT_EQ(pool_.scrub_rate_, kDefaultScrubBytesPerSecond);
}

TEST_F(PoolFiles, WrongValuesChangeNothing) {
  const std::string before = shown("stats") + shown("watermarks") + shown("entry_size") + shown("pinned_max");
  const std::vector<std::array<std::string, 2>> cases = {
      {"size", ""},
      {"size", "lots"},
      {"size", "-1"},
      {"size", "1K"},
      {"size", "8G 9G"},
      {"size", "101%"},
      {"policy", ""},
      {"policy", "mru"},
      {"policy", "lru lfu"},
      {"watermarks", "98"},
      {"watermarks", "99:98"},
      {"watermarks", "0:98"},
      {"watermarks", "1:101"},
      {"entry_size", "big"},
      {"entry_size", "0"},
      {"pinned_max", "101%"},
      {"pinned_max", "half"},
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
  };
  for (const auto& [name, text] : cases) {
    const Result<void> done = write(name, text);
    ASSERT_FALSE(done) << name << " '" << text << "'";
    EXPECT_EQ(done.error().code, EINVAL);
    EXPECT_TRUE(done.error().message.starts_with("pool p: " + name + ": ")) << done.error().message;
  }
  EXPECT_EQ(shown("stats") + shown("watermarks") + shown("entry_size") + shown("pinned_max"), before);
  EXPECT_TRUE(pool_.orders_.empty());
}

TEST_F(PoolFiles, ASettersRefusalIsHandedOn) {
  const Result<void> done = write("size", "1G");
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, EBUSY);
  EXPECT_EQ(done.error().message, "pool p: 2G are pinned or in use");
  EXPECT_EQ(shown("size"), "16G\n");
}

TEST_F(PoolFiles, ALearnedEntrySizeIsShownBesideAuto) {
  pool_.learned_bytes_ = 2 << 20;
  EXPECT_EQ(shown("entry_size"), "auto 2M\n");
  ASSERT_EQ(code_of_write("entry_size", "4M"), 0);
  EXPECT_EQ(shown("entry_size"), "4M\n");
}

TEST_F(PoolFiles, EvictOrders) {
  for (const char* text : {"25%\n", "10G\n", "1000 entries\n", "1000\n", "7entries"}) {
    EXPECT_EQ(code_of_write("evict", text), 0) << text;
  }
  using Unit = EvictOrder::Unit;
  const std::vector<std::pair<Unit, uint64_t>> expected = {{Unit::kPercent, 25},
                                                           {Unit::kBytes, uint64_t{10} << 30},
                                                           {Unit::kEntries, 1000},
                                                           {Unit::kEntries, 1000},
                                                           {Unit::kEntries, 7}};
  ASSERT_EQ(pool_.orders_.size(), expected.size());
  for (size_t index = 0; index < expected.size(); ++index) {
    EXPECT_EQ(pool_.orders_[index].unit, expected[index].first);
    EXPECT_EQ(pool_.orders_[index].amount, expected[index].second);
  }
  EXPECT_EQ(shown("evict"), "evicted 12 entries 24M\n");
}

TEST_F(PoolFiles, NumaIsALineANode) {
  pool_.nodes_ = {{0, 1048576, 1048576}, {2, 5, 0}};
  EXPECT_EQ(shown("numa"), "node 0 bytes 1048576 huge 1048576\nnode 2 bytes 5 huge 0\n");
}

TEST_F(PoolFiles, StatsComeInBothForms) {
  EXPECT_TRUE(shown("stats").starts_with("size_bytes 17179869184\n"));
  EXPECT_TRUE(shown("stats").ends_with("io_mode daemon\n"));
  EXPECT_TRUE(shown("stats.json").starts_with("{\"size_bytes\":17179869184,"));
}

TEST_F(PoolFiles, ReadsArePositioned) {
  const auto reader = *file("policy").open(pool_);
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
  pool_.shards_ = {{}, {plain}, {}, {odd}, {}};
  EXPECT_EQ(shown("entries"),
            "name size tier node hits age_s priority pinned\n"
            "a/b\t4096\tdirty\t1\t3\t60\t-5\t1\n"
            "tab\\there\\nline\\\\end\t0\tdirty\t0\t0\t0\t0\t0\n");
}

}  // namespace kvcachefs::control_pool_files_test
