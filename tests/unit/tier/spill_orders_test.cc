#include "tier/disk/spill_orders.h"

#include <gtest/gtest.h>

#include <cerrno>

namespace kvcachefs::spill_orders_test {

constexpr uint64_t kG = uint64_t{1} << 30;

PoolOptions with_spill() {
  PoolOptions options;
  options.spill_path = "/dev/old";
  options.spill_size_bytes = 10 * kG;
  return options;
}

TEST(SpillOrder, NamesAPlaceAndASize) {
  const std::tuple<const char*, const char*, uint64_t> cases[] = {
      {"/dev/nvme0n1 200G", "/dev/nvme0n1", 200 * kG},
      {"/dev/nvme0n1", "/dev/nvme0n1", 0},
      {"/a file  with blanks   1.5G", "/a file  with blanks", kG * 3 / 2},
      {"/a,b 1G\n", "/a,b", kG},
      {"20G", "/dev/old", 20 * kG},
      {" 20G", "/dev/old", 20 * kG},
  };
  for (const auto& [text, path, size] : cases) {
    PoolOptions options = with_spill();
    Result<void> set = set_spill_order(options, text);
    ASSERT_TRUE(set) << text << ": " << set.error().message;
    EXPECT_EQ(options.spill_path, path) << text;
    EXPECT_EQ(options.spill_size_bytes, size) << text;
  }
}

TEST(SpillOrder, TakesFurtherSettings) {
  PoolOptions options;
  const std::string text = "/x 1G\nspill_unit=1M\ncatalog=/c\nspill_force=on";
  ASSERT_TRUE(set_spill_order(options, text + "\n"));
  EXPECT_EQ(options.spill_unit_bytes, 1u << 20);
  EXPECT_EQ(options.catalog_path, "/c");
  EXPECT_TRUE(options.spill_force);
  EXPECT_EQ(spill_order_text(options), text);
  EXPECT_EQ(spill_place_text(options), "/x 1G");
  ASSERT_TRUE(set_spill_order(options, "none"));
  EXPECT_EQ(spill_order_text(options), "none");
  EXPECT_EQ(options.spill_unit_bytes, kDefaultSpillUnitBytes);
}

TEST(SpillOrder, ChangesNothingOnAMistake) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "'' is not PATH SIZE"},
      {"relative 1G", "'relative' is not an absolute path"},
      {"/x 0", "a disk tier of 0 bytes"},
      {"/x 64K", "less than two units"},
      {"/x 1G\ndurability=sync", "'durability=sync' is none of spill_unit=, catalog="},
      {"/x 1G\nmore", "'more'"},
      {"/x 1G\nspill_unit=3", "spill_unit"},
  };
  for (const auto& [text, reason] : cases) {
    PoolOptions options = with_spill();
    Result<void> set = set_spill_order(options, text);
    ASSERT_FALSE(set) << text;
    EXPECT_EQ(set.error().code, EINVAL);
    EXPECT_NE(set.error().message.find(reason), std::string::npos) << set.error().message;
    EXPECT_EQ(spill_order_text(options), "/dev/old 10G");
  }
  PoolOptions none;
  EXPECT_FALSE(set_spill_order(none, "20G"));
}

}  // namespace kvcachefs::spill_orders_test
