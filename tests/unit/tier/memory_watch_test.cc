#include "tier/pool/memory_watch.h"

#include <gtest/gtest.h>

#include <fstream>
#include <random>

#include "tests/support/pools_test.h"

namespace kvcachefs::memory_watch_test {

constexpr uint64_t kMiB = uint64_t{1} << 20;
using std::chrono::milliseconds;

Giver giver(uint64_t used_mib, uint64_t evictable_mib, uint64_t floor_mib = 0, uint64_t leaving_mib = 0) {
  return {.size_bytes = 1000 * kMiB,
          .used_bytes = used_mib * kMiB,
          .evictable_bytes = evictable_mib * kMiB,
          .floor_bytes = floor_mib * kMiB,
          .leaving_bytes = leaving_mib * kMiB};
}

TEST(Giver, WhatItCouldGive) {
  EXPECT_EQ(giver(100, 100).spare_bytes(), 100 * kMiB);
  EXPECT_EQ(giver(100, 30).spare_bytes(), 30 * kMiB) << "the rest is in use or pinned";
  EXPECT_EQ(giver(100, 90, 40).spare_bytes(), 60 * kMiB) << "down to the floor";
  EXPECT_EQ(giver(100, 90, 40, 50).spare_bytes(), 10 * kMiB) << "what leaves is given already";
  EXPECT_EQ(giver(100, 90, 40, 70).spare_bytes(), 0u);
  EXPECT_EQ(giver(30, 30, 40).spare_bytes(), 0u);
}

TEST(TakeBack, FromEachByWhatItCouldGive) {
  std::vector<Giver> givers = {giver(100, 100), giver(300, 300), giver(50, 50, 50)};
  EXPECT_EQ(take_back(40 * kMiB, givers), 0u);
  EXPECT_EQ(givers[0].given_bytes, 10 * kMiB);
  EXPECT_EQ(givers[1].given_bytes, 30 * kMiB);
  EXPECT_EQ(givers[2].given_bytes, 0u);
}

TEST(TakeBack, SaysWhatNobodyHas) {
  std::vector<Giver> givers = {giver(100, 60), giver(300, 300, 280)};
  EXPECT_EQ(take_back(100 * kMiB, givers), 20 * kMiB);
  EXPECT_EQ(givers[0].given_bytes, 60 * kMiB);
  EXPECT_EQ(givers[1].given_bytes, 20 * kMiB);
  EXPECT_EQ(take_back(kMiB, {}), kMiB);
}

TEST(GiveBack, ToThoseBelowTheirSizesAlone) {
  std::vector<Giver> givers = {giver(100, 100), giver(200, 200), giver(300, 300)};
  givers[0].ceiling_bytes = 110 * kMiB;
  givers[1].ceiling_bytes = 700 * kMiB;
  give_back(170 * kMiB, givers);
  EXPECT_EQ(givers[0].ceiling_bytes, 190 * kMiB);
  EXPECT_EQ(givers[1].ceiling_bytes, 700 * kMiB) << "it has more room than its part";
  EXPECT_EQ(givers[2].ceiling_bytes, PoolLimit::kNone);
  give_back(1700 * kMiB, givers);
  for (const Giver& each : givers) EXPECT_EQ(each.ceiling_bytes, PoolLimit::kNone);
}

// Whatever the pools have, no more is asked of one than it can give, and no limit comes down by giving back.
TEST(MemoryShares, KeepTheirBounds) {
  std::mt19937 random(7);
  const auto any = [&](uint64_t most) { return std::uniform_int_distribution<uint64_t>(0, most)(random); };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<Giver> givers(any(5));
    for (Giver& each : givers) {
      each.size_bytes = any(uint64_t{1} << (12 + any(40)));
      each.used_bytes = any(each.size_bytes);
      each.evictable_bytes = any(each.size_bytes);
      each.floor_bytes = any(each.size_bytes);
      each.leaving_bytes = any(2) == 0 ? 0 : any(each.size_bytes);
      each.ceiling_bytes = any(2) == 0 ? PoolLimit::kNone : any(each.size_bytes);
    }
    const uint64_t lacking = any(uint64_t{1} << any(50));
    const uint64_t still = take_back(lacking, givers);
    uint64_t given = 0;
    for (const Giver& each : givers) {
      EXPECT_LE(each.given_bytes, each.spare_bytes());
      given += each.given_bytes;
    }
    EXPECT_LE(given, lacking);
    EXPECT_GE(given + givers.size() + (lacking >> 50), lacking - still) << round;  // rounded down
    const std::vector<Giver> before = givers;
    give_back(lacking, givers);
    for (size_t i = 0; i < givers.size(); ++i) {
      EXPECT_GE(givers[i].ceiling_bytes, before[i].ceiling_bytes);
      EXPECT_TRUE(givers[i].ceiling_bytes == PoolLimit::kNone ||
                  givers[i].ceiling_bytes < givers[i].size_bytes);
    }
  }
}

class MemoryWatchTest : public test::PoolsTest {
 protected:
  void available(uint64_t bytes) {
    std::filesystem::create_directories(disk_ / "proc");
    std::ofstream(disk_ / "proc/meminfo")
        << "MemTotal: 1048576 kB\nMemAvailable: " << bytes / 1024 << " kB\n";
  }
  MemoryWatch watch(uint64_t reserve_bytes = 100 * kMiB, unsigned floor_percent = 0) {
    return MemoryWatch(*pools_, {reserve_bytes, floor_percent}, reader_);
  }
  // A file that no entry is counted for, as one that is open.
  UniqueFd use(Pool& pool, uint64_t bytes) {
    UniqueFd file(
        ::openat(pool.inodes().directory(pool.root_ino())->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    EXPECT_TRUE(sys::allocate(file.get(), 0, 0, bytes));
    return file;
  }

  HostMemoryReader reader_{disk_ / "proc"};
};

TEST_F(MemoryWatchTest, LooksMoreOftenTheLessThereIs) {
  const auto pool = make(options("a"));
  MemoryWatch memory = watch();
  available(900 * kMiB);
  EXPECT_EQ(memory.step(), milliseconds(50));
  available(110 * kMiB);
  EXPECT_EQ(memory.step(), milliseconds(10));
  EXPECT_FALSE(pool->capacity().limit().is_lowered());
}

TEST_F(MemoryWatchTest, WhatIsInUseIsNotAskedFor) {
  const auto pool = make(options("a"));
  const UniqueFd open = use(*pool, 2 * kMiB);
  MemoryWatch memory = watch();
  available(50 * kMiB);
  EXPECT_EQ(memory.step(), milliseconds(100));
  EXPECT_FALSE(pool->capacity().limit().is_lowered());
  EXPECT_EQ(pool->counters().gave_way_bytes, 0u);
}

}  // namespace kvcachefs::memory_watch_test
