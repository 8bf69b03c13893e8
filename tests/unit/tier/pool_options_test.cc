#include "tier/pool_options.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvcachefs::pool_options_test {

constexpr uint64_t kG = uint64_t{1} << 30;
constexpr uint64_t kMemory = 64 * kG;

TEST(PoolSpec, TakesEveryKey) {
  Result<PoolOptions> pool = parse_pool_spec(
      "llama:size=16G,policy=lfu,watermarks=80:90,entry_size=2M,pinned_max=25%,max_entries=1000,"
      "max_directories=10,max_xattr_bytes=4K,max_xattrs=9,leaf_first=on,mode=0750,uid=1000,gid=100",
      kMemory);
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_EQ(pool->name, "llama");
  EXPECT_EQ(pool->size_bytes, 16 * kG);
  EXPECT_EQ(pool->policy, "lfu");
  EXPECT_EQ(pool->watermarks.low_percent, 80u);
  EXPECT_EQ(pool->watermarks.high_percent, 90u);
  EXPECT_EQ(pool->entry_size_bytes, 2u << 20);
  EXPECT_EQ(pool->pinned_max_percent, 25u);
  EXPECT_EQ(pool->max_entries, 1000u);
  EXPECT_EQ(pool->max_directories, 10u);
  EXPECT_EQ(pool->max_xattr_bytes, 4096u);
  EXPECT_EQ(pool->max_xattrs, 9u);
  EXPECT_TRUE(pool->leaf_first);
  EXPECT_EQ(pool->mode, 0750u);
  EXPECT_EQ(pool->uid, 1000u);
  EXPECT_EQ(pool->gid, 100u);
}

TEST(PoolSpec, HasDefaults) {
  Result<PoolOptions> pool = parse_pool_spec("a", kMemory);
  ASSERT_TRUE(pool);
  EXPECT_EQ(pool->size_bytes, 16 * kG);
  EXPECT_EQ(pool->policy, "lru");
  EXPECT_EQ(pool_option_text(*pool, "watermarks"), "95:98");
  EXPECT_EQ(pool_option_text(*pool, "entry_size"), "auto");
  EXPECT_EQ(pool->pinned_max_percent, 50u);
  EXPECT_EQ(pool->mode, 01777u);
  EXPECT_TRUE(parse_pool_spec("a:", kMemory));
}

TEST(PoolSpec, TakesSizesInPercentAndWholePages) {
  EXPECT_EQ(parse_pool_spec("a:size=25%", kMemory)->size_bytes, 16 * kG);
  EXPECT_EQ(parse_pool_spec("a:size=100%", 64 * kG + 4095)->size_bytes, 64 * kG);
  EXPECT_EQ(parse_pool_spec("a:size=1048577", kMemory)->size_bytes, 1048576u);
}

TEST(PoolSpec, TheMaximumIsNotLessThanTheSize) {
  EXPECT_EQ(pool_option_text(*parse_pool_spec("a:size=1G", kMemory), "size_max"), "");
  EXPECT_TRUE(check_size_max(*parse_pool_spec("a:size=1G", kMemory)));
  EXPECT_TRUE(check_size_max(*parse_pool_spec("a:size=1G,size_max=1G", kMemory)));
  EXPECT_EQ(pool_option_text(*parse_pool_spec("a:size=1G,size_max=2G", kMemory), "size_max"), "2G");
  const auto less = check_size_max(*parse_pool_spec("a:size=2G,size_max=1G", kMemory));
  ASSERT_FALSE(less);
  EXPECT_EQ(less.error().message, "size_max 1G is less than the size 2G");
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
      {"a:user_share=101", "user_share: '101' is not a percentage from 0 to 100"},
      {"a:user_share=half", "user_share: 'half' is not a percentage from 0 to 100"},
      {"a:mode=1888", "mode"},
      {"a:mode=17777", "mode"},
      {"a:uid=root", "uid"},
      {"a:gid=4294967295", "gid"},
      {"a:spill=kv.spill", "spill: 'kv.spill' is not an absolute path"},
      {"a:spill=", "spill: '' is not an absolute path"},
      {"a:spill=/a\nb", "spill: a path with control characters"},
      {"a:spill=/x,y", "'y' is not key=value (a path with a comma in it can be given in the configuration"},
      {"a:catalog=/x,y,size=1G", "'y' is not key=value (a path with a comma"},
      {"a:catalog=x", "catalog: 'x' is not an absolute path"},
      {"a:spill_size=lots", "spill_size: 'lots'"},
      {"a:spill_size=0", "spill_size: a disk tier of 0 bytes"},
      {"a:spill_unit=48K", "spill_unit: '48K' is not a power of two from 4K to 4M"},
      {"a:spill_unit=2K", "spill_unit"},
      {"a:spill_unit=8M", "spill_unit"},
      {"a:spill_unit=0", "spill_unit"},
      {"a:durability=fast", "durability: 'fast' is none of none, writeback, sync"},
      {"a:admission=some", "admission: 'some' is none of all, second_access, tinylfu"},
      {"a:prefetch=true", "prefetch: 'true' is none of on, off"},
      {"a:spill_force=1", "spill_force: '1'"},
  };
  for (const auto& [spec, reason] : cases) {
    Result<PoolOptions> pool = parse_pool_spec(spec, kMemory);
    ASSERT_FALSE(pool) << spec;
    EXPECT_EQ(pool.error().code, EINVAL);
    EXPECT_NE(pool.error().message.find(reason), std::string::npos) << pool.error().message;
    EXPECT_EQ(pool.error().message.find('\n'), std::string::npos);
  }
}

TEST(PoolSpec, DescribesADiskTier) {
  Result<PoolOptions> pool = parse_pool_spec(
      "a:spill=/dev//nvme0n1/,spill_size=200G,spill_unit=1M,catalog=/var/lib/x/,durability=sync,"
      "admission=tinylfu,prefetch=off,spill_force=on",
      kMemory);
  ASSERT_TRUE(pool) << pool.error().message;
  EXPECT_EQ(pool->spill_path, "/dev/nvme0n1");
  EXPECT_EQ(pool->spill_size_bytes, 200 * kG);
  EXPECT_EQ(pool->spill_unit_bytes, 1u << 20);
  EXPECT_EQ(pool->catalog_path, "/var/lib/x");
  EXPECT_EQ(pool->durability, Durability::kSync);
  EXPECT_EQ(pool->admission, Admission::kTinyLfu);
  EXPECT_FALSE(pool->prefetch);
  EXPECT_TRUE(pool->spill_force);
  EXPECT_TRUE(check_spill_options(*pool));
  ASSERT_TRUE(set_pool_option(*pool, "spill", "none", kMemory));
  EXPECT_TRUE(check_spill_options(*pool));
  for (const PoolSetting& setting : pool_settings()) {
    if (setting.key != "size") {
      EXPECT_EQ(setting.get(*pool), setting.get(PoolOptions{})) << setting.key;
    }
  }
}

TEST(PoolOption, DurabilityGoesByTheDiskTier) {
  PoolOptions options;
  EXPECT_EQ(durability_of(options), Durability::kNone);
  EXPECT_EQ(pool_option_text(options, "durability"), "");
  EXPECT_EQ(pool_option_text(options, "spill"), "none");
  options.spill_path = "/x";
  EXPECT_EQ(durability_of(options), Durability::kWriteback);
  options.durability = Durability::kNone;
  EXPECT_EQ(durability_of(options), Durability::kNone);
  options.name = "llama";
  EXPECT_EQ(default_catalog_path(options, false), "/x.catalog");
  EXPECT_EQ(default_catalog_path(options, true), "/var/lib/kvcachefs/llama");
}

TEST(PoolOption, PartsOfADiskTierNeedOne) {
  const std::pair<const char*, const char*> cases[] = {
      {"spill_size=1G", "spill_size=1G needs a disk tier: spill=PATH"},
      {"spill_unit=1M", "spill_unit=1M needs"},
      {"catalog=/c", "catalog=/c needs"},
      {"durability=none", "durability=none needs"},
      {"admission=second_access", "admission=second_access needs"},
      {"prefetch=off", "prefetch=off needs"},
      {"spill_force=on", "spill_force=on needs"},
      {"spill=/x,catalog=/x", "catalog=/x is the spill path itself"},
      {"spill=/x,spill_size=64K", "spill_size=64K is less than two units of 64K"},
      {"spill=/x,spill_size=4M,spill_unit=4M", "less than two units of 4M"},
  };
  for (const auto& [pairs, reason] : cases) {
    PoolOptions options;
    ASSERT_TRUE(set_pool_options(options, pairs, kMemory)) << pairs;
    const Result<void> good = check_spill_options(options);
    ASSERT_FALSE(good) << pairs;
    EXPECT_EQ(good.error().code, EINVAL);
    EXPECT_NE(good.error().message.find(reason), std::string::npos) << good.error().message;
  }
  PoolOptions options;
  ASSERT_TRUE(set_pool_options(options, "spill_unit=64K,admission=all,prefetch=on", kMemory));
  EXPECT_TRUE(check_spill_options(options));
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
  EXPECT_EQ(pool_option_text(options, "watermarks"), "95:98");
  EXPECT_EQ(options.size_bytes, 16 * kG);
  EXPECT_TRUE(set_pool_option(options, "watermarks", "1:100", kMemory));
  EXPECT_EQ(pool_option_text(options, "watermarks"), "1:100");
  EXPECT_NE(find_pool_setting("pinned_max"), nullptr);
  EXPECT_EQ(find_pool_setting("name"), nullptr);
}

}  // namespace kvcachefs::pool_options_test
