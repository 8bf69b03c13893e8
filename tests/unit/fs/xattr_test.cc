// SETXATTR, GETXATTR, LISTXATTR and REMOVEXATTR, as the kernel sends them.
#include <sys/xattr.h>

#include <cerrno>

#include "tests/support/served_test.h"

namespace kvcachefs::xattr_test {

using test::FuseAnswer;
using test::wire;
using test::wire_name;

class XattrTest : public test::ServedTest {
 protected:
  int set(std::string_view name, std::string_view value, uint32_t flags = 0) {
    // Without FUSE_SETXATTR_EXT the kernel sends the two first fields.
    const fuse_setxattr_in in{
        .size = static_cast<uint32_t>(value.size()), .flags = flags, .setxattr_flags = 0, .padding = 0};
    return ask(FUSE_SETXATTR, nodeid_,
               wire(in).substr(0, FUSE_COMPAT_SETXATTR_IN_SIZE) + wire_name(name) + std::string(value))
        .error;
  }
  FuseAnswer get(std::string_view name, uint32_t size = 1000) {
    return ask(FUSE_GETXATTR, nodeid_, wire(fuse_getxattr_in{.size = size, .padding = 0}) + wire_name(name));
  }
  FuseAnswer list(uint32_t size = 1000) {
    return ask(FUSE_LISTXATTR, nodeid_, wire(fuse_getxattr_in{.size = size, .padding = 0}));
  }
  int remove(std::string_view name) { return ask(FUSE_REMOVEXATTR, nodeid_, wire_name(name)).error; }
  void store() {
    const File file = create("entry", "content");
    ASSERT_EQ(release(file).error, 0);
    nodeid_ = file.nodeid;
  }

  uint64_t nodeid_ = 0;
};

TEST_F(XattrTest, UsersAttributesAreKept) {
  store();
  EXPECT_EQ(get("user.a").error, ENODATA);
  EXPECT_EQ(set("user.a", "value"), 0);
  EXPECT_EQ(set("trusted.b", ""), 0) << "the kernel lets nobody else set it";
  EXPECT_EQ(get("user.a").bytes, "value");
  EXPECT_EQ(get("trusted.b").bytes, "");
  EXPECT_EQ(remove("user.a"), 0);
  EXPECT_EQ(remove("user.a"), ENODATA);
  EXPECT_EQ(get("user.a").error, ENODATA);
}

TEST_F(XattrTest, TheBufferMayBeAskedForFirst) {
  store();
  ASSERT_EQ(set("user.a", "value"), 0);
  EXPECT_EQ(get("user.a", 0).as<fuse_getxattr_out>().size, 5u);
  EXPECT_EQ(get("user.a", 5).bytes, "value");
  EXPECT_EQ(get("user.a", 4).error, ERANGE);
  EXPECT_EQ(get("user.kvcachefs.tier", 0).as<fuse_getxattr_out>().size, 5u);
  EXPECT_EQ(get("user.kvcachefs.tier", 5).bytes, "dirty");
  EXPECT_EQ(get("user.kvcachefs.tier", 4).error, ERANGE);
  EXPECT_EQ(list(0).as<fuse_getxattr_out>().size, 7u);
  EXPECT_EQ(list(7).bytes, wire_name("user.a"));
  EXPECT_EQ(list(6).error, ERANGE);
}

TEST_F(XattrTest, ASetMayBeToMakeOrToReplace) {
  store();
  EXPECT_EQ(set("user.a", "1", XATTR_REPLACE), ENODATA);
  EXPECT_EQ(set("user.a", "1", XATTR_CREATE), 0);
  EXPECT_EQ(set("user.a", "2", XATTR_CREATE), EEXIST);
  EXPECT_EQ(get("user.a").bytes, "1");
  EXPECT_EQ(set("user.a", "3", XATTR_REPLACE), 0);
  EXPECT_EQ(get("user.a").bytes, "3");
}

TEST_F(XattrTest, WhatGrantsRightsOrIsTheDaemonsIsRefused) {
  store();
  for (const char* name : {"security.capability", "security.selinux", "system.posix_acl_access",
                           "trusted.kvcachefs.times", "trusted.kvcachefs."}) {
    EXPECT_EQ(set(name, "x"), EOPNOTSUPP) << name;
    EXPECT_EQ(get(name).error, EOPNOTSUPP) << name;
    EXPECT_EQ(remove(name), EOPNOTSUPP) << name;
  }
  EXPECT_EQ(list().bytes, "");
}

TEST_F(XattrTest, TheDaemonsOwnAreNotListed) {
  store();
  ASSERT_EQ(set("user.kvcachefs.pinned", "1"), 0);
  const auto pool = pools_->find("p");
  const auto fd = pool->inodes().open_inode(NodeId{nodeid_}.ino(), O_RDONLY);
  ASSERT_TRUE(fd);
  ASSERT_TRUE(sys::get_xattr(fd->get(), kPinnedXattr, {})) << "a successor knows it by this";
  ASSERT_EQ(set("user.a", "1"), 0);
  EXPECT_EQ(list().bytes, wire_name("user.a"));
}

TEST_F(XattrTest, FactsAreReadByName) {
  store();
  EXPECT_EQ(get("user.kvcachefs.tier").bytes, "dirty");
  EXPECT_EQ(get("user.kvcachefs.pinned").bytes, "0");
  EXPECT_EQ(get("user.kvcachefs.hits").bytes, "0");
  EXPECT_EQ(open(nodeid_).error, 0);
  EXPECT_EQ(get("user.kvcachefs.hits").bytes, "1");
  EXPECT_EQ(get("user.kvcachefs.checksum").error, ENODATA) << "no disk has a copy";
  EXPECT_EQ(get("user.kvcachefs.unknown").error, ENODATA);
  EXPECT_EQ(get("user.kvcachefs.").error, ENODATA);
  nodeid_ = root_;
  EXPECT_EQ(get("user.kvcachefs.tier").error, ENODATA) << "only a file is in a tier";
}

TEST_F(XattrTest, AFactIsSetToItselfOnly) {
  store();
  EXPECT_EQ(set("user.kvcachefs.tier", "dirty"), 0) << "a program that copies all attributes goes on";
  EXPECT_EQ(set("user.kvcachefs.tier", "cold"), EPERM);
  EXPECT_EQ(set("user.kvcachefs.unknown", ""), EPERM);
  EXPECT_EQ(remove("user.kvcachefs.tier"), EPERM);
  EXPECT_EQ(remove("user.kvcachefs.pinned"), EPERM);
}

TEST_F(XattrTest, APinIsOnOrOff) {
  store();
  for (const char* wrong : {"", "2", "01", "yes", "1\n"})
    EXPECT_EQ(set("user.kvcachefs.pinned", wrong), EINVAL);
  EXPECT_EQ(get("user.kvcachefs.pinned").bytes, "0");
  EXPECT_EQ(set("user.kvcachefs.pinned", "1"), 0);
  EXPECT_EQ(get("user.kvcachefs.pinned").bytes, "1");
  EXPECT_EQ(set("user.kvcachefs.pinned", "0"), 0);
  EXPECT_EQ(get("user.kvcachefs.pinned").bytes, "0");
}

TEST_F(XattrTest, APriorityIsANumberWithinItsLimits) {
  store();
  for (const char* wrong : {"", "1001", "-1001", "1 ", " 1", "+1", "0x1", "1.5", "99999999999"}) {
    EXPECT_EQ(set("user.kv.priority", wrong), EINVAL) << wrong;
    EXPECT_EQ(get("user.kv.priority").error, ENODATA) << wrong;
  }
  for (const char* good : {"1000", "-1000", "0", "-0"}) {
    EXPECT_EQ(set("user.kv.priority", good), 0) << good;
    EXPECT_EQ(get("user.kv.priority").bytes, good);
  }
  EXPECT_EQ(remove("user.kv.priority"), 0);
}

TEST_F(XattrTest, AllOfAnInodeHaveALimitTogether) {
  store();
  constexpr size_t kMost = 256 << 10, kEach = 64 << 10;
  // Four values of 64 KiB, but for the bytes of their names (8 each) and of `user.e`.
  const std::string value(kEach - 8, 'x');
  for (const char* name : {"user.aaa", "user.bbb", "user.ccc"}) ASSERT_EQ(set(name, value), 0) << name;
  ASSERT_EQ(set("user.ddd", value.substr(7)), 0);
  static_assert(4 * kEach == kMost);
  EXPECT_EQ(set("user.e", "12"), ENOSPC);
  EXPECT_EQ(get("user.e").error, ENODATA);
  EXPECT_EQ(set("user.e", "1"), 0);
  EXPECT_EQ(set("user.aaa", value), 0) << "a value that is replaced does not count";
  EXPECT_EQ(set("user.aaa", value + "x"), ENOSPC);
}

// Beyond 64 KiB of names the kernel would list none of them, and the catalog could not have the entry.
TEST_F(XattrTest, SoDoTheirNames) {
  store();
  const std::string long_name = "user." + std::string(245, 'n');
  int set_names = 0;
  while (set_names < 1000 && set(long_name + fmt::format("{:04}", set_names), "") == 0) ++set_names;
  EXPECT_EQ(set_names, (32 << 10) / 255) << "with a byte between them";
  EXPECT_EQ(set(long_name + "last", ""), ENOSPC);
  EXPECT_EQ(set(long_name + "0000", "x"), 0) << "it is there already";
  EXPECT_EQ(list(1 << 16).bytes.size(), static_cast<size_t>(set_names) * 255);
  for (int i = 0; i < set_names; ++i) ASSERT_EQ(remove(long_name + fmt::format("{:04}", i)), 0);
  for (int i = 0; i < 256; ++i) ASSERT_EQ(set("user." + std::to_string(i), ""), 0) << i;
  EXPECT_EQ(set("user.b", ""), ENOSPC) << "each costs a call whenever they are read";
}

TEST_F(XattrTest, WhatIsNoInodeOfAPoolHasNone) {
  nodeid_ = NodeId::kRoot;
  EXPECT_EQ(get("user.a").error, ENODATA);
  EXPECT_EQ(get("security.selinux").error, EOPNOTSUPP);
  EXPECT_EQ(list().bytes, "");
  EXPECT_EQ(list(0).as<fuse_getxattr_out>().size, 0u);
  EXPECT_EQ(set("user.a", "x"), EPERM);
  EXPECT_EQ(remove("user.a"), EPERM);
  nodeid_ = NodeId::of_inode(1, 1 << 30).value;
  EXPECT_EQ(get("user.a").error, ESTALE);
}

}  // namespace kvcachefs::xattr_test
