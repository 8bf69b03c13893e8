// The file of what was changed of pools (daemon/kept_settings.h), as text.
#include <gtest/gtest.h>

#include "daemon/kept_settings.h"

namespace kvcachefs::kept_pools_test {

constexpr uint64_t kMemory = uint64_t{1} << 30;

const KeptPools kPools = {
    {"a", {.is_created = true, .is_deleted = false, .values = {{"size", "8M"}, {"policy", "lfu"}}}},
    {"b", {.is_created = false, .is_deleted = true, .values = {}}},
    {"c", {.is_created = false, .is_deleted = false, .values = {{"spill", "/data/\"x\"\\ y"}}}}};

TEST(KeptPools, WhatIsWrittenIsRead) {
  for (const KeptPools& pools : {KeptPools(), kPools}) {
    const auto read = parse_kept_pools("F", format_kept_pools(pools), kMemory);
    ASSERT_TRUE(read) << read.error().message;
    EXPECT_EQ(*read, pools);
  }
}

TEST(KeptPools, ATextThatWasCutIsRefused) {
  const std::string whole = format_kept_pools(kPools);
  for (size_t size = 0; size < whole.size(); ++size) {
    const auto read = parse_kept_pools("F", whole.substr(0, size), kMemory);
    ASSERT_FALSE(read) << whole.substr(0, size);
    EXPECT_TRUE(read.error().message.starts_with("F:")) << read.error().message;
  }
}

TEST(KeptPools, AVersionThatWroteNoLastLineIsRead) {
  const auto read =
      parse_kept_pools("F",
                       "# kvcachefsd wrote this: what was changed of its pools while it served, "
                       "over its configuration.\n"
                       "\n[pools.\"a\"]\npolicy = \"lfu\"\n",
                       kMemory);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->at("a").values.at("policy"), "lfu");
}

}  // namespace kvcachefs::kept_pools_test
