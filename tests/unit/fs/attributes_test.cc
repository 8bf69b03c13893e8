// GETATTR, SETATTR, READLINK and STATFS, as the kernel sends them.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "tests/support/served_test.h"
#include "tests/support/user_process.h"

namespace kvcachefs::attributes_test {

using test::UserProcess;
using test::wire;
using test::wire_name;

constexpr uint64_t kYearS = 31'000'000;

class AttributesTest : public test::ServedTest {
 protected:
  test::FuseAnswer getattr(uint64_t nodeid) { return ask(FUSE_GETATTR, nodeid, wire(fuse_getattr_in{})); }
  test::FuseAnswer setattr(uint64_t nodeid, const fuse_setattr_in& wanted) {
    return ask(FUSE_SETATTR, nodeid, wire(wanted));
  }
  static fuse_setattr_in mode(uint32_t mode) {
    fuse_setattr_in wanted{};
    wanted.valid = FATTR_MODE;
    wanted.mode = mode;
    return wanted;
  }
  static fuse_setattr_in size(uint64_t bytes) {
    fuse_setattr_in wanted{};
    wanted.valid = FATTR_SIZE;
    wanted.size = bytes;
    return wanted;
  }
  uint64_t stored(std::string_view name, std::string_view content) {
    const File file = create(name, content);
    EXPECT_EQ(release(file).error, 0);
    return file.nodeid;
  }
};

TEST_F(AttributesTest, TheMountsRootCountsItsPools) {
  auto root = getattr(NodeId::kRoot).as<fuse_attr_out>();
  EXPECT_EQ(root.attr.mode, S_IFDIR | 0755u);
  EXPECT_EQ(root.attr.nlink, 3u);
  make(options("q"));
  root = getattr(NodeId::kRoot).as<fuse_attr_out>();
  EXPECT_EQ(root.attr.nlink, 4u);
  EXPECT_EQ(root.attr.ino, NodeId::kRoot);
}

TEST_F(AttributesTest, ThoseOfAFileThatIsBeingWrittenAreNotRemembered) {
  const File file = create("entry", "content");
  auto attributes = getattr(file.nodeid).as<fuse_attr_out>();
  EXPECT_EQ(attributes.attr.size, 7u);
  EXPECT_EQ(attributes.attr_valid, 0u);
  EXPECT_EQ(release(file).error, 0);
  attributes = getattr(file.nodeid).as<fuse_attr_out>();
  EXPECT_EQ(attributes.attr.ino, file.nodeid);
  EXPECT_GT(attributes.attr_valid, kYearS);
  EXPECT_EQ(getattr(NodeId::of_inode(1, 1 << 30).value).error, ESTALE);
}

TEST_F(AttributesTest, ModeAndOwnerAreSetAlone) {
  const uint64_t nodeid = stored("entry", "x");
  EXPECT_EQ(setattr(nodeid, mode(S_IFREG | 04711)).as<fuse_attr_out>().attr.mode, S_IFREG | 04711u);
  fuse_setattr_in owner{};
  owner.valid = FATTR_UID;
  owner.uid = 5;
  owner.gid = 6;
  auto attributes = setattr(nodeid, owner).as<fuse_attr_out>().attr;
  EXPECT_EQ(attributes.uid, 5u);
  EXPECT_EQ(attributes.gid, 0u) << "only the user was given";
  owner.valid = FATTR_GID;
  owner.uid = 7;
  attributes = setattr(nodeid, owner).as<fuse_attr_out>().attr;
  EXPECT_EQ(attributes.uid, 5u);
  EXPECT_EQ(attributes.gid, 6u);
}

TEST_F(AttributesTest, TimesAreSetToAValueOrToNow) {
  const uint64_t nodeid = stored("entry", "x");
  fuse_setattr_in times{};
  times.valid = FATTR_MTIME;
  times.mtime = 1000;
  times.mtimensec = 5;
  times.atime = 2000;
  auto attributes = setattr(nodeid, times).as<fuse_attr_out>().attr;
  EXPECT_EQ(attributes.mtime, 1000u);
  EXPECT_EQ(attributes.mtimensec, 5u);
  EXPECT_NE(attributes.atime, 2000u);
  times.valid = FATTR_ATIME;
  attributes = setattr(nodeid, times).as<fuse_attr_out>().attr;
  EXPECT_EQ(attributes.atime, 2000u);
  EXPECT_EQ(attributes.mtime, 1000u);
  times.valid = FATTR_MTIME | FATTR_MTIME_NOW;
  attributes = setattr(nodeid, times).as<fuse_attr_out>().attr;
  EXPECT_GT(attributes.mtime, 1'000'000'000u);
  EXPECT_EQ(attributes.atime, 2000u);
}

TEST_F(AttributesTest, AFileIsCutAndMadeLonger) {
  const uint64_t nodeid = stored("entry", "content");
  EXPECT_EQ(setattr(nodeid, size(3)).as<fuse_attr_out>().attr.size, 3u);
  EXPECT_EQ(setattr(nodeid, size(8)).as<fuse_attr_out>().attr.size, 8u);
  const auto opened = open(nodeid);
  EXPECT_EQ(read({nodeid, opened.as<fuse_open_out>().fh}, 0, 100).bytes, std::string("con\0\0\0\0\0", 8));
  EXPECT_EQ(setattr(nodeid, size(UINT64_MAX >> 1)).error, 0) << "a hole takes no memory";
  EXPECT_EQ(setattr(nodeid, size(UINT64_MAX)).error, EINVAL);
}

TEST_F(AttributesTest, WhatFailsAfterAnEffectIsInterrupted) {
  const uint64_t nodeid = stored("entry", "content");
  fuse_setattr_in both = size(3);
  both.valid |= FATTR_MTIME;
  both.mtime = 1;
  both.mtimensec = 2'000'000'000;  // no kernel sends it; utimensat(2) refuses it
  EXPECT_EQ(setattr(nodeid, both).error, EINTR) << "the kernel drops what it has cached of the file";
  EXPECT_EQ(getattr(nodeid).as<fuse_attr_out>().attr.size, 3u);
  both.valid = FATTR_MTIME;
  EXPECT_EQ(setattr(nodeid, both).error, EINVAL) << "nothing was done";
}

TEST_F(AttributesTest, ACutByAUserClearsSetIdBits) {
  const uint64_t nodeid = stored("entry", "content");
  const UserProcess user(5, 6), member(5, 6, {0});
  struct Case {
    pid_t pid;
    uint32_t before, after;
  };
  for (const Case& its :
       {Case{::getpid(), 06755, 06755}, Case{user.pid(), 06755, 0755}, Case{user.pid(), 02745, 0745},
        Case{member.pid(), 02755, 0755}, Case{member.pid(), 02745, 02745}, Case{user.pid(), 01755, 01755}}) {
    ASSERT_EQ(setattr(nodeid, mode(S_IFREG | its.before)).error, 0);
    const auto cut = kernel_.ask(
        {.opcode = FUSE_SETATTR, .nodeid = nodeid, .body = wire(size(3)), .uid = 5, .pid = its.pid});
    EXPECT_EQ(cut.as<fuse_attr_out>().attr.mode, S_IFREG | its.after) << std::oct << its.before;
  }
}

TEST_F(AttributesTest, AShellMayTruncateAControlFile) {
  const uint64_t control = nodeid_of(nodeid_of(root_, ".pool"), "size");
  ASSERT_NE(control, 0u);
  EXPECT_EQ(setattr(control, size(0)).error, 0);
  fuse_setattr_in times = size(0);
  times.valid |= FATTR_MTIME | FATTR_MTIME_NOW;
  EXPECT_EQ(setattr(control, times).error, 0);
  EXPECT_EQ(setattr(control, mode(0666)).error, EPERM);
  fuse_setattr_in owner = size(0);
  owner.valid |= FATTR_UID;
  EXPECT_EQ(setattr(control, owner).error, EPERM);
  EXPECT_EQ(getattr(control).as<fuse_attr_out>().attr.size, 4096u) << "as in sysfs";
}

TEST_F(AttributesTest, ALinkSaysWhereItLeads) {
  const auto link = ask(FUSE_SYMLINK, root_, wire_name("link") + wire_name("its target"));
  ASSERT_EQ(link.error, 0);
  EXPECT_EQ(ask(FUSE_READLINK, link.as<fuse_entry_out>().nodeid).bytes, "its target");
  EXPECT_EQ(ask(FUSE_READLINK, stored("entry", "x")).error, ENOENT) << "as readlinkat(2) of an empty path";
}

// Which buffers clients take must not depend on how the kernel has come to know a file.
TEST_F(AttributesTest, EachAnswerTellsTheSameBufferSize) {
  constexpr uint32_t kExpected = 128 << 10;
  const auto made = ask(FUSE_SYMLINK, root_, wire_name("link") + wire_name("its target"));
  EXPECT_EQ(made.as<fuse_entry_out>().attr.blksize, kExpected);
  const uint64_t file = stored("entry", "x");
  EXPECT_EQ(getattr(file).as<fuse_attr_out>().attr.blksize, kExpected);
  EXPECT_EQ(setattr(file, mode(0600)).as<fuse_attr_out>().attr.blksize, kExpected);
  EXPECT_EQ(ask(FUSE_LOOKUP, root_, wire_name("entry")).as<fuse_entry_out>().attr.blksize, kExpected);
  EXPECT_EQ(getattr(root_).as<fuse_attr_out>().attr.blksize, kExpected);
  EXPECT_EQ(getattr(NodeId::kRoot).as<fuse_attr_out>().attr.blksize, kExpected);
  const uint64_t control = nodeid_of(root_, ".pool");
  EXPECT_EQ(getattr(control).as<fuse_attr_out>().attr.blksize, kExpected);
  EXPECT_EQ(ask(FUSE_LOOKUP, root_, wire_name(".pool")).as<fuse_entry_out>().attr.blksize, kExpected);
}

TEST_F(AttributesTest, APoolSaysWhatItMayHold) {
  stored("entry", std::string(4096, 'x'));
  const auto pool = ask(FUSE_STATFS, root_).as<fuse_statfs_out>().st;
  EXPECT_EQ(pool.bsize, 4096u);
  EXPECT_EQ(pool.namelen, 255u);
  EXPECT_EQ(pool.blocks, 4 * kMiB / 4096 / 16 * 15) << "the rest is kept free for writers";
  EXPECT_EQ(pool.bfree, pool.blocks - 1);
  EXPECT_EQ(pool.bavail, pool.blocks) << "entries leave for new ones";
  EXPECT_GT(pool.files, pool.ffree);
  make(options("q", 8 * kMiB));
  const auto all = ask(FUSE_STATFS, NodeId::kRoot).as<fuse_statfs_out>().st;
  EXPECT_EQ(all.blocks, 12 * kMiB / 4096 / 16 * 15) << "all pools together";
  EXPECT_EQ(all.bfree, all.blocks - 1);
  EXPECT_EQ(ask(FUSE_STATFS, NodeId::of_inode(9, 1).value).as<fuse_statfs_out>().st.blocks, 0u);
}

}  // namespace kvcachefs::attributes_test
