// The rules that no single setting can show to be broken.
#include "daemon/config.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvcachefs::config_test {

constexpr uint64_t kMiB = uint64_t{1} << 20;

PoolOptions pool(const std::string& name, uint64_t size_bytes = kMiB) {
  PoolOptions options;
  options.name = name;
  options.size_bytes = size_bytes;
  options.size_max_bytes = size_bytes;
  return options;
}

PoolOptions spilling(const std::string& name, const std::string& path) {
  PoolOptions options = pool(name);
  options.spill_path = path;
  options.spill_size_bytes = kMiB;
  return options;
}

Config config_of(const std::vector<PoolOptions>& pools, std::optional<uint64_t> reserve_bytes) {
  Config config;
  config.pools = pools;
  config.memory_reserve_bytes = reserve_bytes;
  return config;
}

// Why the pools cannot be; empty if they can.
std::string refusal(const std::vector<PoolOptions>& pools, uint64_t memory_bytes = 10 * kMiB,
                    const PoolOrigins& origins = {}) {
  const Result<void> good = check_pools(config_of(pools, 0), origins, memory_bytes);
  if (good) return "";
  EXPECT_EQ(good.error().code, EINVAL);
  return good.error().message;
}

TEST(CheckPools, TogetherTheyFitInTheMemory) {
  EXPECT_EQ(refusal({}, 0), "");
  EXPECT_EQ(refusal({pool("a", 6 * kMiB), pool("b", 4 * kMiB)}), "");
  EXPECT_EQ(
      refusal({pool("a", 6 * kMiB), pool("b", 4 * kMiB + 4096)}),
      "--pool: pool b: size 4100K is beyond the memory: 4M of 10M are left, without the memory_reserve of 0");
  EXPECT_NE(refusal({pool("a", UINT64_MAX), pool("b", 2)}), "");
  EXPECT_NE(refusal({pool("a", 10 * kMiB), pool("b", 1)}), "");
}

TEST(CheckPools, TogetherTheyLeaveTheReserve) {
  Config config = config_of({pool("a", 6 * kMiB), pool("b", 2 * kMiB)}, 2 * kMiB);
  EXPECT_TRUE(check_pools(config, {}, 10 * kMiB));
  config.pools.push_back(pool("c", 4096));
  const Result<void> good = check_pools(config, {}, 10 * kMiB);
  ASSERT_FALSE(good);
  EXPECT_EQ(
      good.error().message,
      "--pool: pool c: size 4K is beyond the memory: 0 of 10M are left, without the memory_reserve of 2M");
  config.memory_reserve_bytes = 11 * kMiB;
  EXPECT_FALSE(check_pools(config, {}, 10 * kMiB));
  config.memory_reserve_bytes.reset();
  EXPECT_FALSE(check_pools(config, {}, 10 * kMiB)) << "half of a small memory";
}

TEST(Reserve, IsATwentiethOfTheMemory) {
  constexpr uint64_t kGiB = 1024 * kMiB;
  EXPECT_EQ(default_memory_reserve(100 * kGiB), 5 * kGiB);
  EXPECT_EQ(default_memory_reserve(8 * kGiB), 512 * kMiB);
  EXPECT_EQ(default_memory_reserve(512 * kMiB), 256 * kMiB);
  EXPECT_EQ(default_memory_reserve(0), 0u);
  EXPECT_EQ(memory_reserve_of(config_of({}, kGiB), 8 * kGiB), kGiB);
}

TEST(CheckPools, AnEntryFitsInItsPool) {
  PoolOptions options = pool("a");
  options.entry_size_bytes = kMiB;
  EXPECT_EQ(refusal({options}), "");
  ++options.entry_size_bytes;
  EXPECT_EQ(refusal({options}).substr(0, 19), "--pool: pool a: ent");
}

TEST(CheckPools, ASizeIsNotBeyondItsLimit) {
  PoolOptions options = pool("a");
  options.size_max_bytes = kMiB - 4096;
  EXPECT_NE(refusal({options}), "");
}

TEST(CheckPools, NoTwoHaveTheSameDisk) {
  EXPECT_EQ(refusal({spilling("a", "/disk/a"), spilling("b", "/disk/b")}), "");
  EXPECT_EQ(refusal({spilling("a", "/disk/a"), pool("b"), spilling("c", "/disk/a")}),
            "--pool: pool c: spill=/disk/a is pool a's");
  PoolOptions half = pool("a");
  half.spill_size_bytes = kMiB;
  EXPECT_NE(refusal({half}), "") << "a disk's option without a disk";
}

TEST(CheckPools, TheFirstMistakeIsToldWithItsPlace) {
  PoolOptions wrong = pool("a.b");
  wrong.entry_size_bytes = 2 * kMiB;
  const PoolOrigins origins{{"a.b", "/etc/kv.toml:7"}};
  EXPECT_TRUE(refusal({pool("first"), wrong, pool("later", UINT64_MAX)}, 10 * kMiB, origins)
                  .starts_with("/etc/kv.toml:7: pool a.b: entry_size 2M"));
}

TEST(CheckTransport, OverIoUringNoPoolHasADisk) {
  Config config;
  config.pools = {pool("a"), spilling("b", "/disk/b")};
  EXPECT_TRUE(check_transport(config, {}));
  config.io_uring = true;
  const Result<void> refused = check_transport(config, {{"b", "/etc/kv.toml:3"}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EINVAL);
  EXPECT_TRUE(refused.error().message.starts_with("/etc/kv.toml:3: pool b: spill=/disk/b"));
  config.pools.pop_back();
  EXPECT_TRUE(check_transport(config, {}));
}

}  // namespace kvcachefs::config_test
