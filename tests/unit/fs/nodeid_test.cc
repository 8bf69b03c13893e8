#include "fs/nodeid.h"

#include <gtest/gtest.h>

namespace kvcachefs::nodeid_test {

constexpr uint16_t kLastPool = 0x7fff;
constexpr uint64_t kLastIno = (uint64_t{1} << 48) - 1;

TEST(NodeId, AnInodeOfAPoolComesApartAgain) {
  for (const uint16_t pool : {uint16_t{1}, kLastPool}) {
    for (const uint64_t ino : {uint64_t{1}, kLastIno}) {
      const NodeId id = NodeId::of_inode(pool, ino);
      EXPECT_EQ(id.pool_number(), pool);
      EXPECT_EQ(id.ino(), ino);
      EXPECT_TRUE(id.is_inode());
      EXPECT_FALSE(id.is_control() || id.is_administrators() || id.is_root() || id.is_mount_control());
    }
  }
}

TEST(NodeId, APoolsControlFilesAreNoInodes) {
  for (const uint64_t index : {0, 12}) {
    const NodeId id = NodeId::of_control(3, index);
    EXPECT_EQ(id.pool_number(), 3u);
    EXPECT_EQ(id.control_number(), index);
    EXPECT_TRUE(id.is_control());
    EXPECT_FALSE(id.is_inode() || id.is_mount_control() || id.is_administrators());
    const NodeId administrators = NodeId::of_administrators(3, index);
    EXPECT_NE(administrators.value, id.value);
    EXPECT_EQ(administrators.pool_number(), 3u);
    EXPECT_EQ(administrators.control_number(), index);
    EXPECT_TRUE(administrators.is_control());
    EXPECT_TRUE(administrators.is_administrators());
    EXPECT_FALSE(administrators.is_inode());
  }
}

TEST(NodeId, TheMountsOwnFilesBelongToNoPool) {
  const NodeId root{NodeId::kRoot};
  EXPECT_TRUE(root.is_root());
  EXPECT_FALSE(root.is_control() || root.is_inode());
  const NodeId stats = NodeId::of_control(0, 1);
  EXPECT_TRUE(stats.is_mount_control());
  EXPECT_TRUE(stats.is_control());
  EXPECT_EQ(stats.control_number(), 1u);
  EXPECT_FALSE(stats.is_inode() || stats.is_root() || stats.is_pools_directory());
  EXPECT_TRUE(NodeId{NodeId::kPoolsDirectory}.is_pools_directory());
}

}  // namespace kvcachefs::nodeid_test
