// LMCache's `local_disk` keeps an index and a budget and does not expect a name to go: it raises, and keeps
// its lock. The README gives it a separate pool and a budget of less than 90% of that pool: then the pool
// evicts nothing. Other clients take what statvfs(2) says.
#include <sys/statvfs.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/clients/calls.h"
#include "tests/clients/client.h"
#include "tests/clients/content.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::clients {
namespace {

constexpr uint64_t kPoolBytes = uint64_t{128} << 20;

class BudgetTest : public ::testing::TestWithParam<uint64_t> {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }

  // evicted_with() stores three times the pool's size, with a block in four asked for again; returns how many
  // entries the pool evicted.
  static int64_t evicted_with(uint64_t budget_bytes, uint64_t entry_bytes) {
    test::Mount mount({.pools = {"p:size=" + std::to_string(kPoolBytes)}});
    const auto client = make_lmcache_local_disk({mount.path(), entry_bytes, budget_bytes});
    EXPECT_TRUE(client->start().done());
    Buffer buffer(entry_bytes);
    test::Random random(entry_bytes);
    const uint64_t keys = 3 * kPoolBytes / entry_bytes;
    for (uint64_t key = 0; key < keys; ++key) {
      fill_content(key, buffer.span());
      const Outcome stored = client->store(key, buffer.span());
      EXPECT_TRUE(stored.done()) << stored.reason;
      const std::vector<uint64_t> asked = {random.below(key + 1)};
      size_t found = 0;
      EXPECT_TRUE(client->probe(asked, found).done());
      if (found == 0 || !random.one_in(4)) continue;
      const Outcome loaded = client->load(asked[0], buffer.span());
      if (loaded.done()) {
        EXPECT_FALSE(first_wrong_byte(asked[0], buffer.span()).has_value());
      }
    }
    const int64_t evicted = mount.stat_value("discards") + mount.stat_value("evictions");
    mount.stop();
    return evicted;
  }
};

TEST_P(BudgetTest, BelowNineTenthsOfThePoolNothingIsEvicted) {
  EXPECT_EQ(evicted_with(kPoolBytes / 10 * 9, GetParam()), 0);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BudgetTest,
                         ::testing::Values(uint64_t{64} << 10, uint64_t{1} << 20, uint64_t{10} << 20,
                                           uint64_t{32} << 20),
                         [](const auto& parameter) { return std::to_string(parameter.param >> 10) + "KiB"; });

struct Filled {
  std::string name;
  std::string options;
  std::vector<uint64_t> entry_bytes;  // the sizes take turns; a size that does not fit any more is left out
  bool keeps_pace = false;            // the client goes on when memory is free again

  uint64_t largest_bytes() const { return *std::max_element(entry_bytes.begin(), entry_bytes.end()); }
  std::vector<uint64_t> entries_of(uint64_t budget_bytes) const {
    std::vector<uint64_t> entries;
    const uint64_t smallest_bytes = *std::min_element(entry_bytes.begin(), entry_bytes.end());
    for (size_t turn = 0; budget_bytes >= smallest_bytes; ++turn) {
      const uint64_t bytes = entry_bytes[turn % entry_bytes.size()];
      if (bytes > budget_bytes) continue;
      entries.push_back(bytes);
      budget_bytes -= bytes;
    }
    return entries;
  }
};
// Clients give themselves 95% of what statvfs(2) says of an empty pool, and count on finding all of it.
void expect_all_stays(const std::vector<Filled>& pools) {
  test::MountOptions options{.pools = {}};
  for (const Filled& each : pools) options.pools.push_back(each.name + ":" + each.options);
  test::Mount mount(options);
  mount.stop_squeezing();
  for (const Filled& each : pools) {
    struct statvfs space {};
    ASSERT_EQ(::statvfs(mount.path(each.name).c_str(), &space), 0);
    EXPECT_EQ(space.f_bfree, space.f_blocks) << each.name;
    EXPECT_EQ(space.f_bavail, space.f_blocks) << each.name;
    const auto entries = each.entries_of(space.f_blocks * space.f_frsize / 100 * 95);
    const auto keep_pace = [&] {
      EXPECT_TRUE(!each.keeps_pace || test::eventually([&] {
        return mount.stat_value("free_bytes", each.name) >= static_cast<int64_t>(2 * each.largest_bytes());
      }));
    };
    const std::string name = mount.path(each.name) + "/e-";
    for (size_t i = 0; i < entries.size(); ++i) {
      ASSERT_EQ(test::store(name + std::to_string(i), test::pattern(i, entries[i])), 0) << i;
      keep_pace();
    }
    EXPECT_TRUE(test::settled(mount, each.name));
    size_t whole = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      std::string content;
      whole += test::load(name + std::to_string(i), &content) == 0 && test::difference(i, content).empty();
      keep_pace();
    }
    EXPECT_EQ(whole, entries.size()) << each.name;
    EXPECT_EQ(mount.stat_value("discards", each.name), 0) << each.name;
    test::remove_content(mount.path(each.name));
  }
  mount.stop();
}

TEST(BudgetOfAPool, NineteenTwentiethsOfItStay) {
  KVCACHEFS_NEED_DAEMON();
  if (test::every_pool_spills()) GTEST_SKIP() << "the disks of the harness are larger";
  expect_all_stays({{"pages", "size=128M", {64 << 10}},
                    {"small", "size=128M", {test::kMiB}},
                    {"odd", "size=128M", {1'234'567}},
                    {"eighths", "size=128M", {16 * test::kMiB}},
                    {"large", "size=1G", {48 * test::kMiB}},
                    {"marks", "size=128M,watermarks=40:60", {test::kMiB}}});
}

// Memory that is reserved for a large entry, and given back when a small one is closed, evicts no other
// entry.
TEST(BudgetOfAPool, NineteenTwentiethsOfItStayInEntriesOfMixedSizes) {
  KVCACHEFS_NEED_DAEMON();
  if (test::every_pool_spills()) GTEST_SKIP() << "the disks of the harness are larger";
  constexpr uint64_t kSmall = 64 << 10, kLarge = 8 * test::kMiB;
  expect_all_stays(
      {{"large_first", "size=64M", {kLarge, kLarge, kLarge, kLarge, kLarge, kLarge, kLarge, kSmall}},
       {"mixed", "size=64M", {kSmall, kLarge, test::kMiB}},
       {"less_than_set", "size=64M,entry_size=16M", {test::kMiB}},
       {"of_a_gigabyte", "size=1G", {40 * test::kMiB, 3 * test::kMiB}}});
}

TEST(BudgetOfAPool, NineteenTwentiethsOfItStayWithADisk) {
  KVCACHEFS_NEED_DAEMON();
  if (test::mode() == test::Mode::kIoUring) GTEST_SKIP() << "no pool has a disk tier over io_uring";
  const test::DiskDirectory disk;
  const auto spill = [&](const std::string& name) {
    return ",spill=" + disk / name + ",spill_size=128M,catalog=" + disk / (name + ".catalog");
  };
  // Without durability no writer waits for the disk, and what it does not take in time is discarded.
  expect_all_stays({{"both", "size=32M,durability=none" + spill("both"), {test::kMiB}, true},
                    {"durable", "size=32M,durability=writeback" + spill("durable"), {test::kMiB}},
                    {"durable_pages", "size=32M,durability=writeback" + spill("pages"), {64 << 10}}});
}

}  // namespace
}  // namespace kvcachefs::clients
