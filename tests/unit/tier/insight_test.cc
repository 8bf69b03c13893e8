#include "tier/pool/insight.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "tests/support/pool_parts.h"

namespace kvcachefs::insight_test {

class InsightTest : public test::PoolPartsTest {
 protected:
  InsightTest() : PoolPartsTest(Upto::kInsight) {}
  std::vector<EntryListing> list_all() {
    std::vector<EntryListing> all;
    for (size_t shard = 0; shard < Insight::kListingShards; ++shard)
      for (const sys::Handle file : insight_->entries_of(shard))
        if (auto listing = insight_->listing_of(file)) all.push_back(std::move(*listing));
    return all;
  }
};

TEST_F(InsightTest, UsageIsTheSumOfTheEntries) {
  const uint64_t f = store("f", std::string(3 * kBlock, 'x'));
  const uint64_t g = store("g");
  open_entry(store("open"));
  ASSERT_TRUE(entries_.pinned(entry(g), kBlock, UINT64_MAX));
  const PoolUsage usage = insight_->usage();
  EXPECT_EQ(usage.size_bytes, kPoolBytes);
  EXPECT_EQ(usage.used_bytes, 5 * kBlock);
  EXPECT_EQ(usage.free_bytes, kPoolBytes - 5 * kBlock);
  EXPECT_EQ(usage.evictable_bytes, 3 * kBlock) << "one is open, one pinned";
  EXPECT_EQ(usage.pinned_bytes, kBlock);
  EXPECT_EQ(usage.pinned_max_bytes, kPoolBytes / 2);
  EXPECT_EQ(usage.entries, 3u);
  EXPECT_EQ(usage.open_entries, 1u);
  open_entry(f);
  EXPECT_EQ(insight_->usage().evictable_bytes, 0u);
}

// An entry's memory is what it was at its last close.
TEST_F(InsightTest, NoMoreIsEvictableThanIsUsed) {
  (void)store("f", std::string(3 * kBlock, 'x'));
  ASSERT_TRUE(sys::truncate(open("f").get(), 0));
  EXPECT_EQ(insight_->usage().evictable_bytes, 0u);
}

TEST_F(InsightTest, WhileTheDiskIsAwayWhatItHasOrIsToHaveStays) {
  (void)store("f", std::string(3 * kBlock, 'x'));
  const uint64_t g = store("g");
  entries_.contents().spilled(entry(g));
  (void)lose_disk(std::chrono::hours(1));
  EXPECT_EQ(insight_->usage().evictable_bytes, 3 * kBlock);
  EXPECT_TRUE(insight_->spill_usage().away);
  (void)disk_->exchange_durability(Durability::kWriteback);
  EXPECT_EQ(insight_->usage().evictable_bytes, 0u);
}

TEST_F(InsightTest, SpillUsageIsTheSumByTier) {
  SpillUsage usage = insight_->spill_usage();
  EXPECT_EQ(usage.size_bytes, 0u) << "no disk";
  EXPECT_FALSE(usage.away);
  attach_disk(Durability::kNone, 64);
  (void)store("dirty", std::string(3 * kBlock, 'x'));
  make_clean(store("clean", std::string(4 * kBlock, 'x')));
  make_cold(store("cold", std::string(5 * kBlock, 'x')));
  (void)create("not stored");
  usage = insight_->spill_usage();
  EXPECT_EQ(usage.dirty_entries, 1u);
  EXPECT_EQ(usage.dirty_bytes, 3 * kBlock);
  EXPECT_EQ(usage.clean_entries, 1u);
  EXPECT_EQ(usage.clean_bytes, 4 * kBlock);
  EXPECT_EQ(usage.cold_entries, 1u);
  EXPECT_EQ(usage.cold_bytes, 5 * kBlock);
  EXPECT_EQ(insight_->cold_bytes(), 5 * kBlock);
  EXPECT_EQ(usage.size_bytes, 64 * kUnitBytes);
  EXPECT_EQ(usage.used_bytes, (1 + 2 + 3) * kUnitBytes) << "with the superblock's";
  EXPECT_EQ(usage.free_bytes, 58 * kUnitBytes);
  EXPECT_EQ(usage.largest_free_run_bytes, 58 * kUnitBytes);
  EXPECT_FALSE(usage.failed);
}

TEST_F(InsightTest, ADiskThatCannotFlushHasFailed) {
  attach_disk();
  make_clean(store("f"));
  device_->fail_flushes(1);
  commit();
  EXPECT_TRUE(insight_->spill_usage().failed);
}

TEST_F(InsightTest, EachEntryIsListedOnce) {
  attach_disk();
  make_directory("d");
  const uint64_t f = store("d/f", std::string(100, 'x'));
  open_entry(f);
  close_entry(f);
  entries_.described(entry(f), 7);
  make_cold(f);
  const uint64_t g = create("g");
  ASSERT_TRUE(entries_.pinned(entry(g), kBlock, UINT64_MAX));
  (void)make_known_directory("e");
  const Nameless nameless = create_nameless();
  const uint64_t gone = store("gone");
  const UniqueFd holder = open("gone");
  ASSERT_EQ(::unlinkat(root(), "gone", 0), 0);
  auto all = list_all();
  ASSERT_EQ(all.size(), 2u);
  if (all[0].name == "g") std::swap(all[0], all[1]);
  EXPECT_EQ(all[0].name, "d/f");
  EXPECT_EQ(all[0].size_bytes, 100u);
  EXPECT_EQ(all[0].tier, Entry::Tier::kCold);
  EXPECT_EQ(all[0].hits, 1u);
  EXPECT_EQ(all[0].priority, 7);
  EXPECT_LT(all[0].age_s, 60u);
  EXPECT_FALSE(all[0].pinned);
  EXPECT_EQ(all[1].name, "g");
  EXPECT_EQ(all[1].tier, Entry::Tier::kDirty);
  EXPECT_TRUE(all[1].pinned);
  EXPECT_TRUE(insight_->entries_of(Insight::kListingShards).empty());
  EXPECT_TRUE(state(gone).exists && state(nameless.ino).exists);
}

TEST_F(InsightTest, TheFactsOfAnEntry) {
  attach_disk();
  const uint64_t f = store("f");
  auto facts = insight_->facts(f);
  ASSERT_TRUE(facts);
  EXPECT_TRUE(facts->is_file);
  EXPECT_EQ(facts->tier, "dirty");
  EXPECT_EQ(facts->checksum, "");
  EXPECT_EQ(facts->version, 1u);
  make_clean(f);
  facts = insight_->facts(f);
  EXPECT_EQ(facts->tier, "clean");
  const Checksum checksum = copy(f)->checksum;
  EXPECT_EQ(facts->checksum, fmt::format("{:016x}{:016x}", checksum.high, checksum.low));
  entries_.contents().dirtied(entry(f));
  EXPECT_EQ(insight_->facts(f)->checksum, "") << "the disk has an older content";
  EXPECT_FALSE(insight_->facts(make_known_directory("d"))->is_file);
  facts = insight_->facts(arena_->tree().ino);
  EXPECT_TRUE(facts && !facts->is_file) << "also where the kernel does not know the root";
  EXPECT_EQ(test::code_of(insight_->facts(4711)), ESTALE);
}

TEST_F(InsightTest, AFullPoolIsReported) {
  insight_->report_full(true);
  insight_->report_full(false);
  EXPECT_EQ(counters_.no_space_errors, 2u);
}

TEST_F(InsightTest, TheSurveyCountsTheMemoryOfEachNode) {
  (void)store("f", std::string(3 * kBlock, 'x'));
  (void)store("g");
  uint64_t bytes = 0;
  for (const NodeUsage& node : insight_->numa_survey().recent(2)) bytes += node.bytes;
  EXPECT_EQ(bytes, 4 * kBlock);
}

// What the table says of their memory is not looked at: half of each is gone.
TEST_F(InsightTest, ASampleStandsForAllOfThePoolsMemory) {
  constexpr uint64_t kEntries = 300;
  for (uint64_t i = 0; i < kEntries; ++i) {
    const uint64_t blocks = 2 + 2 * (i % 2);
    const std::string name = std::to_string(i);
    (void)store(name, std::string(blocks * kBlock, 'x'));
    ASSERT_TRUE(sys::truncate(open(name).get(), blocks / 2 * kBlock));
  }
  const auto bytes = [this](uint64_t most_entries) {
    uint64_t sum = 0;
    for (const NodeUsage& node : insight_->numa_usage(most_entries)) sum += node.bytes;
    return sum;
  };
  const uint64_t all = arena_->usage().used_bytes();
  ASSERT_EQ(all, kEntries * 3 / 2 * kBlock);
  for (const uint64_t most_entries : {kEntries, kEntries - 1, uint64_t{20}, NumaSurvey::kGlance, uint64_t{1}})
    EXPECT_EQ(bytes(most_entries), all) << most_entries;
  insight_->numa_survey().end();
  EXPECT_EQ(bytes(kEntries), 0u) << "the daemon ends";
}

// One glance among 200 cold entries would find none of those that have memory.
TEST_F(InsightTest, ASampleIsOfEntriesWithMemory) {
  attach_disk(Durability::kNone, 1024);
  for (int i = 0; i < 200; ++i) make_cold(store("cold" + std::to_string(i)));
  for (int i = 0; i < 4; ++i) (void)store("warm" + std::to_string(i), std::string(3 * kBlock, 'x'));
  for (int look = 0; look < 10; ++look) {
    uint64_t bytes = 0;
    for (const NodeUsage& node : insight_->numa_usage(NumaSurvey::kGlance)) bytes += node.bytes;
    EXPECT_EQ(bytes, 12 * kBlock) << look;
  }
}

}  // namespace kvcachefs::insight_test
