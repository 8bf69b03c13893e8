#include "base/mountinfo.h"

#include <gtest/gtest.h>

#include "tests/unit/daemon/fake_mount.h"

namespace kvcachefs::mountinfo_test {

constexpr std::string_view kTable =
    "21 26 0:20 / /proc rw,nosuid shared:5 - proc proc rw\n"
    "40 26 0:45 / /mnt/kv rw,nosuid,nodev,relatime shared:9 master:1 - fuse.kvcachefs kvcachefs "
    "rw,user_id=0,allow_other\n"
    "41 26 0:45 /llama /mnt/a\\040b\\011c\\012d\\134e\\303\\244#\\134040 ro,nosuid - fuse.kvcachefs "
    "kvcachefs rw\n"
    "42 26 0:45 / /mnt/again rw - fuse.kvcachefs kvcachefs rw,user_id=0\n"
    "43 26 0:46 / /mnt/hidden rw - fuse.kvcachefs kvcachefs rw,user_id=0\n"
    "44 26 0:47 / /mnt/hidden rw - tmpfs tmpfs rw\n"
    "47 26 0:50 / /home/user/kv rw - fuse.kvcachefs user_id=0 ro,user_id=1000,group_id=0\n"
    "45 26 0:48 / /mnt/other rw - fuse.sshfs kvcachefs rw\n"
    "\n"
    "46 26 0:49 / /mnt/short rw - fuse.kvcachefs\n"
    "garbage\n";

TEST(Mountinfo, TakesTheFieldsApart) {
  const std::vector<MountPoint> mounts = test::mounts_in(kTable);
  ASSERT_EQ(mounts.size(), 8u);
  EXPECT_EQ(mounts[0].type, "proc");
  EXPECT_EQ(mounts[1].device, "0:45");
  EXPECT_EQ(mounts[1].root, "/");
  EXPECT_EQ(mounts[1].directory, "/mnt/kv");
  EXPECT_EQ(mounts[1].options, "rw,nosuid,nodev,relatime,user_id=0,allow_other");
  EXPECT_EQ(mounts[1].type, "fuse.kvcachefs");
  EXPECT_EQ(mounts[1].source, "kvcachefs");
  EXPECT_EQ(mounts[1].super_options, "rw,user_id=0,allow_other");
  EXPECT_EQ(mounts[1].peer_group, "9");
  EXPECT_EQ(mounts[1].master_group, "1");
  EXPECT_EQ(mounts[2].peer_group + mounts[2].master_group, "");
  EXPECT_EQ(mounts[2].root, "/llama");
  EXPECT_EQ(mounts[2].directory, "/mnt/a b\tc\nd\\e\xc3\xa4#\\040");
}

TEST(Mountinfo, FindsWhatIsOnTop) {
  const std::vector<MountPoint> mounts = test::mounts_in(kTable);
  ASSERT_NE(find_mount(mounts, "/mnt/hidden"), nullptr);
  EXPECT_EQ(find_mount(mounts, "/mnt/hidden")->type, "tmpfs");
  EXPECT_EQ(find_mount(mounts, "/mnt"), nullptr);
}

TEST(Mountinfo, TellsAFileSystemThatTakesNoWrites) {
  const std::vector<MountPoint> mounts = test::mounts_in(kTable);
  EXPECT_TRUE(is_read_only_everywhere(*find_mount(mounts, "/home/user/kv")));
  EXPECT_FALSE(is_read_only_everywhere(mounts[2])) << "this mount alone takes none";
}

// What a user has mounted with fusermount3(1) does not count.
TEST(Mountinfo, FindsEachFileSystemOnce) {
  EXPECT_EQ(find_kvcachefs_roots(test::mounts_in(kTable)), std::vector<std::string>{"/mnt/kv"});
  EXPECT_TRUE(find_kvcachefs_roots({}).empty());
}

}  // namespace kvcachefs::mountinfo_test
