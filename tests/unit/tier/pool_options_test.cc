#include "tier/pool_options.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvcachefs {
namespace {

constexpr uint64_t kG = uint64_t{1} << 30;
constexpr uint64_t kMemory = 64 * kG;

TEST(PoolSpec, TakesEveryKey) {
  Result<PoolOptions> pool = parse_pool_spec(
      "llama:size=16G,policy=lfu,watermarks=80:90,entry_size=2M,pinned_max=25%,mode=0750,uid=1000,gid=100",
      kMemory);
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_EQ(pool->name, "llama");
  EXPECT_EQ(pool->size_bytes, 16 * kG);
  EXPECT_EQ(pool->policy, "lfu");
  EXPECT_EQ(pool->watermarks.low_percent, 80u);
  EXPECT_EQ(pool->watermarks.high_percent, 90u);
  EXPECT_EQ(pool->entry_size_bytes, 2u << 20);
  EXPECT_EQ(pool->pinned_max_percent, 25u);
  EXPECT_EQ(pool->mode, 0750u);
  EXPECT_EQ(pool->uid, 1000u);
  EXPECT_EQ(pool->gid, 100u);
}

TEST(PoolSpec, HasDefaults) {
  Result<PoolOptions> pool = parse_pool_spec("a", kMemory);
  ASSERT_TRUE(pool);
  EXPECT_EQ(pool->size_bytes, 16 * kG);
  EXPECT_EQ(pool->policy, "lru");
  EXPECT_EQ(format_watermarks(pool->watermarks), "95:98");
  EXPECT_EQ(format_entry_size(pool->entry_size_bytes), "auto");
  EXPECT_EQ(pool->pinned_max_percent, 50u);
  EXPECT_EQ(pool->mode, 01777u);
  EXPECT_TRUE(parse_pool_spec("a:", kMemory));
}

TEST(PoolSpec, TakesSizesInPercentAndWholePages) {
  EXPECT_EQ(parse_pool_spec("a:size=25%", kMemory)->size_bytes, 16 * kG);
  EXPECT_EQ(parse_pool_spec("a:size=100%", 64 * kG + 4095)->size_bytes, 64 * kG);
  EXPECT_EQ(parse_pool_spec("a:size=1048577", kMemory)->size_bytes, 1048576u);
}

TEST(PoolSpec, NamesWhatIsWrong) {
  const std::pair<const char*, const char*> cases[] = {
      {":size=1G", "''"},
      {".hidden:size=1G", "'.hidden'"},
      {"a/b:size=1G", "'a/b'"},
      {"a:size", "'size' is not key=value"},
      {"a:size=1G,,policy=lru", "'' is not key=value"},
      {"a:colour=red", "unknown pool option 'colour'"},
      {"a:size=0", "too small"},
      {"a:size=512K", "too small"},
      {"a:size=0%", "size: '0%'"},
      {"a:size=101%", "size: '101%'"},
      {"a:size=lots", "size: 'lots'"},
      {"a:size=", "size: ''"},
      {"a:policy=magic", "there are lru, lfu, fifo, priority"},
      {"a:watermarks=98:95", "watermarks: '98:95'"},
      {"a:watermarks=0:95", "watermarks"},
      {"a:watermarks=95:101", "watermarks"},
      {"a:watermarks=95", "watermarks"},
      {"a:entry_size=0", "entry_size"},
      {"a:entry_size=Auto", "entry_size"},
      {"a:pinned_max=101", "pinned_max"},
      {"a:mode=1888", "mode"},
      {"a:mode=17777", "mode"},
      {"a:uid=root", "uid"},
      {"a:gid=4294967295", "gid"},
  };
  for (const auto& [spec, reason] : cases) {
    Result<PoolOptions> pool = parse_pool_spec(spec, kMemory);
    ASSERT_FALSE(pool) << spec;
    EXPECT_EQ(pool.error().code, EINVAL);
    EXPECT_NE(pool.error().message.find(reason), std::string::npos) << pool.error().message;
    EXPECT_EQ(pool.error().message.find('\n'), std::string::npos);
  }
}

TEST(PoolName, IsShortAndPlain) {
  for (const std::string& name : {std::string("a"), std::string("Llama-3.1_70B"), std::string(64, 'x')}) {
    EXPECT_TRUE(check_pool_name(name)) << name;
  }
  for (const std::string& name :
       {std::string(), std::string("."), std::string(".."), std::string(".pool"), std::string(65, 'x'),
        std::string("a b"), std::string("a\n"), std::string("ä"), std::string("a\0b", 3)}) {
    EXPECT_FALSE(check_pool_name(name)) << name;
  }
}

TEST(PoolOption, LeavesTheOptionsAloneOnError) {
  PoolOptions options = default_pool("a", kMemory);
  EXPECT_FALSE(set_pool_option(options, "watermarks", "9:1", kMemory));
  EXPECT_FALSE(set_pool_option(options, "size", "0", kMemory));
  EXPECT_EQ(format_watermarks(options.watermarks), "95:98");
  EXPECT_EQ(options.size_bytes, 16 * kG);
  EXPECT_TRUE(set_pool_option(options, "watermarks", "1:100", kMemory));
  EXPECT_EQ(format_watermarks(options.watermarks), "1:100");
  EXPECT_TRUE(is_pool_option("pinned_max"));
  EXPECT_FALSE(is_pool_option("name"));
}

}  // namespace
}  // namespace kvcachefs
