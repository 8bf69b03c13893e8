// The list of served pools, as a successor reads it.
#include "daemon/pool_list.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvcachefs::pool_list_test {

constexpr uint64_t kMemoryBytes = uint64_t{64} << 30;

TEST(PoolListTest, WhatIsWrittenIsRead) {
  const auto listed = parse_pool_list(
      "pool 3 llama\nsize 1G\nsize_max 2G\npolicy lfu\npinned_max 10%\npool 5 a b\nsize 16M\nspill "
      "/disk/with space\n"
      "spill_size 1G\n",
      kMemoryBytes);
  ASSERT_TRUE(listed) << listed.error().message;
  ASSERT_EQ(listed->size(), 2u);
  EXPECT_EQ((*listed)[0].number, 3u);
  EXPECT_EQ((*listed)[0].options.name, "llama");
  EXPECT_EQ((*listed)[0].options.size_bytes, uint64_t{1} << 30);
  EXPECT_EQ((*listed)[0].options.size_max_bytes, uint64_t{2} << 30);
  EXPECT_EQ((*listed)[0].options.policy, "lfu");
  EXPECT_EQ((*listed)[0].options.pinned_max_percent, 10u);
  EXPECT_EQ((*listed)[1].number, 5u);
  EXPECT_EQ((*listed)[1].options.name, "a b");
  EXPECT_EQ((*listed)[1].options.spill_path, "/disk/with space");
}

TEST(PoolListTest, NothingIsAList) {
  const auto listed = parse_pool_list("", kMemoryBytes);
  ASSERT_TRUE(listed);
  EXPECT_TRUE(listed->empty());
}

TEST(PoolListTest, WhatIsNoneIsRefused) {
  for (const char* text : {"pool", "pool x a\n", "pool 0 a\n", "pool 1\n", "size 1G\n",
                           "pool 1 a\ncolour red\n", "pool 1 a\nsize\n", "pool 99999 a\n"}) {
    const auto listed = parse_pool_list(text, kMemoryBytes);
    ASSERT_FALSE(listed) << text;
    EXPECT_EQ(listed.error().code, EINVAL) << text;
  }
}

}  // namespace kvcachefs::pool_list_test
