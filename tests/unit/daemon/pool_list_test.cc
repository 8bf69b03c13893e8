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
  ASSERT_EQ(listed->pools.size(), 2u);
  EXPECT_FALSE(listed->notes) << "as an older version writes it";
  EXPECT_EQ(listed->pools[0].number, 3u);
  EXPECT_EQ(listed->pools[0].options.name, "llama");
  EXPECT_EQ(listed->pools[0].options.size_bytes, uint64_t{1} << 30);
  EXPECT_EQ(listed->pools[0].options.size_max_bytes, uint64_t{2} << 30);
  EXPECT_EQ(listed->pools[0].options.policy, "lfu");
  EXPECT_EQ(listed->pools[0].options.pinned_max_percent, 10u);
  EXPECT_EQ(listed->pools[1].number, 5u);
  EXPECT_EQ(listed->pools[1].options.name, "a b");
  EXPECT_EQ(listed->pools[1].options.spill_path, "/disk/with space");
}

TEST(PoolListTest, TheNotesAreRead) {
  const auto listed = parse_pool_list(
      "written\npool 1 same\nsize 16M\nwritten\npool 2 new\nsize 1G\npool 3 changed\nsize 2G\n"
      "written changed\nsize 1G\nwritten gone\nsize 4M\nconfigured a b\nsize 8M\n",
      kMemoryBytes);
  ASSERT_TRUE(listed) << listed.error().message;
  EXPECT_EQ(listed->pools.size(), 3u);
  ASSERT_TRUE(listed->notes);
  const OptionsByPool& written = listed->notes->written;
  ASSERT_EQ(written.size(), 3u);
  EXPECT_EQ(written.at("same").size_bytes, uint64_t{16} << 20);
  EXPECT_EQ(written.at("changed").size_bytes, uint64_t{1} << 30);
  EXPECT_EQ(written.at("gone").name, "gone");
  ASSERT_EQ(listed->notes->configured.size(), 1u);
  EXPECT_EQ(listed->notes->configured.at("a b").size_bytes, uint64_t{8} << 20);
  const auto none = parse_pool_list("written\n", kMemoryBytes);
  ASSERT_TRUE(none && none->notes);
  EXPECT_TRUE(none->pools.empty() && none->notes->written.empty());
}

TEST(PoolListTest, NothingIsAList) {
  const auto listed = parse_pool_list("", kMemoryBytes);
  ASSERT_TRUE(listed);
  EXPECT_TRUE(listed->pools.empty());
}

TEST(PoolListTest, WhatIsNoneIsRefused) {
  for (const char* text :
       {"pool", "pool x a\n", "pool 0 a\n", "pool 1\n", "size 1G\n", "pool 1 a\ncolour red\n",
        "pool 1 a\nsize\n", "pool 99999 a\n", "configured\n", "written a\ncolour red\n"}) {
    const auto listed = parse_pool_list(text, kMemoryBytes);
    ASSERT_FALSE(listed) << text;
    EXPECT_EQ(listed.error().code, EINVAL) << text;
  }
}

}  // namespace kvcachefs::pool_list_test
