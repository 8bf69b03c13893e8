// What a pool's parts count for the owners of its inodes, in each change that their users make.
#include "tier/pool/counted_inode.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/xattr.h>

#include <cerrno>
#include <map>

#include "tests/support/recovery_test.h"

namespace kvcachefs::counted_inode_test {

using test::code_of;
using ::testing::IsEmpty;

constexpr uid_t kUser = 4001, kOther = 4002;

class CountedInodeTest : public test::PoolPartsTest {
 protected:
  CountedInodeTest() : PoolPartsTest(Upto::kFiles) {}
  Shares::User user(uid_t uid) {
    for (const Shares::User& each : entries_.shares().users())
      if (each.uid == uid) return each;
    return {};
  }
  uint64_t memory(uid_t uid = kUser) { return user(uid).memory_bytes; }
  // As a client's call makes it.
  uint64_t made(const std::string& name, mode_t mode, const char* target = nullptr) {
    const NewInode inode{.mode = mode, .uid = kUser, .gid = 0, .device = 0, .target = target};
    EXPECT_TRUE(tree_->make(root(), name.c_str(), inode)) << name;
    EXPECT_TRUE(tree_->give(root(), open(name, O_PATH | O_NOFOLLOW), inode)) << name;
    if (!S_ISREG(mode)) {
      struct stat attributes = status(name);
      EXPECT_TRUE(inodes_->looked_up(handle(name), attributes));
    }
    return ino(name);
  }
  uint64_t made_file(const std::string& name, uint64_t bytes = 0) {
    const UniqueFd file = make(name);
    EXPECT_EQ(::fchown(file.get(), kUser, 0), 0);
    const auto its = sys::handle_of(file.get());
    EXPECT_TRUE(its);
    EXPECT_TRUE(files_->created({.fd = file.get(),
                                 .ino = its->ino,
                                 .generation = its->generation,
                                 .open = true,
                                 .writer = true,
                                 .named = true,
                                 .name = name,
                                 .node = 0}));
    if (bytes > 0) write(name, std::string(bytes, 'x'));
    files_->end_open(its->ino, {.writer = true});
    return its->ino;
  }
  void chown(uint64_t its, uid_t uid) {
    bool begun = false;
    EXPECT_TRUE(tree_->change(its, {.mode = {}, .uid = uid, .times = {}}, begun));
  }
  void remove(const std::string& name, bool is_directory = false) {
    EXPECT_TRUE(tree_->remove(root(), name.c_str(), is_directory)) << name;
  }
};

TEST_F(CountedInodeTest, WhatUsersMakeAndRemove) {
  made("d", S_IFDIR | 0755);
  EXPECT_EQ(memory(), kInodeBytes);
  made("fifo", S_IFIFO | 0644);
  made("short", S_IFLNK | 0777, "target");
  EXPECT_EQ(memory(), 3 * kInodeBytes);
  made("long", S_IFLNK | 0777, std::string(4000, 't').c_str());
  EXPECT_EQ(memory(), 4 * kInodeBytes + kBlock);
  const uint64_t f = made_file("f", 3 * kBlock);
  EXPECT_EQ(memory(), 5 * kInodeBytes + 4 * kBlock);
  ASSERT_TRUE(tree_->link(f, root(), "g"));
  EXPECT_EQ(memory(), 6 * kInodeBytes + 4 * kBlock) << "a tmpfs counts a name as an inode";
  remove("f");
  EXPECT_EQ(memory(), 5 * kInodeBytes + 4 * kBlock);
  ASSERT_TRUE(tree_->rename(root(), "fifo", root(), "short", 0));
  EXPECT_EQ(memory(), 4 * kInodeBytes + 4 * kBlock) << "it was replaced";
  for (const char* name : {"g", "short", "long"}) remove(name);
  remove("d", true);
  inodes_->forget(f, UINT64_MAX);
  EXPECT_THAT(entries_.shares().users(), IsEmpty());
}

TEST_F(CountedInodeTest, AnotherOwnerHasAllOfIt) {
  const uint64_t f = made_file("f", kBlock), d = made("d", S_IFDIR | 0755);
  chown(f, kOther);
  EXPECT_EQ(memory(), kInodeBytes);
  EXPECT_EQ(memory(kOther), kInodeBytes + kBlock);
  chown(d, kOther);
  EXPECT_EQ(memory(), 0u);
  EXPECT_EQ(memory(kOther), 2 * kInodeBytes + kBlock);
  EXPECT_EQ(entry(f).policy.owner, 2);
}

TEST_F(CountedInodeTest, XattrsTakeInodes) {
  for (const uint64_t its : {made_file("f"), made("d", S_IFDIR | 0755)}) {
    const uint64_t before = memory();
    ASSERT_TRUE(tree_->set_xattr(its, "user.a", std::string(60'000, 'x'), 0));
    EXPECT_GE(memory() - before, 60'000 * kInodeBytes / kNameSpace);
    EXPECT_LT(memory() - before, 61 * kInodeBytes);
    ASSERT_TRUE(tree_->set_xattr(its, "user.a", "x", 0));
    EXPECT_LT(memory() - before, kInodeBytes) << "it was replaced";
    ASSERT_TRUE(tree_->remove_xattr(its, "user.a"));
    EXPECT_EQ(memory(), before);
  }
}

TEST_F(CountedInodeTest, AFileWithoutANameCountsUntilNothingKeepsIt) {
  const uint64_t f = made_file("f", kBlock);
  ASSERT_TRUE(files_->begin_open(f, {}, 0));
  remove("f");
  EXPECT_EQ(memory(), kInodeBytes + kBlock) << "it is open";
  files_->end_open(f, {});
  EXPECT_EQ(memory(), kInodeBytes + kBlock) << "the kernel knows it, and a descriptor keeps it";
  inodes_->forget(f, UINT64_MAX);
  EXPECT_THAT(entries_.shares().users(), IsEmpty());
  const uint64_t g = made_file("g", kBlock);
  remove("g");
  EXPECT_EQ(memory(), kInodeBytes) << "its content is gone";
  inodes_->forget(g, UINT64_MAX);
  EXPECT_THAT(entries_.shares().users(), IsEmpty());
}

TEST_F(CountedInodeTest, LongTargetsAreNotForThoseWhoAreOver) {
  entries_.shares().set_share(1);
  (void)made_file("f", kMiB);
  ASSERT_TRUE(entries_.shares().is_user_over(kUser));
  const auto link = [&](uid_t uid, size_t length) {
    const std::string target(length, 't');
    return code_of(
        tree_->make(root(), ("l" + std::to_string(length)).c_str(),
                    {.mode = S_IFLNK | 0777, .uid = uid, .gid = 0, .device = 0, .target = target.c_str()}));
  };
  EXPECT_EQ(link(kUser, 4000), EDQUOT);
  EXPECT_EQ(link(kUser, 127), 0) << "it takes no page";
  EXPECT_EQ(link(kOther, 4000), 0);
}

// With a disk: its copy counts as long as there is one, also an older one, and what a reader holds.
TEST_F(CountedInodeTest, CopiesOnTheDisk) {
  attach_disk();
  const uint64_t f = made_file("f", kUnitBytes);
  entries_.published(entry(f));
  EXPECT_EQ(user(kUser).disk_bytes, 0u);
  make_cold(f);
  EXPECT_EQ(user(kUser).disk_bytes, kUnitBytes);
  EXPECT_LT(memory(), 2 * kInodeBytes) << "its memory is free";
  ASSERT_TRUE(files_->begin_open(f, {.from_disk = true}, 0));
  EXPECT_EQ(user(kUser).disk_bytes, kUnitBytes) << "it is one copy";
  ASSERT_TRUE(files_->truncate(f, 0));
  EXPECT_EQ(user(kUser).disk_bytes, kUnitBytes) << "the disk has the old one";
  remove("f");
  EXPECT_EQ(user(kUser).disk_bytes, kUnitBytes) << "the reader has it";
  files_->end_open(f, {.from_disk = true});
  EXPECT_EQ(user(kUser).disk_bytes, 0u);
  inodes_->forget(f, UINT64_MAX);
  EXPECT_THAT(entries_.shares().users(), IsEmpty());
}

class CountedAgainTest : public test::RecoveryTest {
 protected:
  std::map<uid_t, std::pair<uint64_t, uint64_t>> users() {
    std::map<uid_t, std::pair<uint64_t, uint64_t>> result;
    for (const Shares::User& user : entries_.shares().users())
      result[user.uid.value_or(UINT32_MAX)] = {user.memory_bytes, user.disk_bytes};
    return result;
  }
  void give(const std::string& name, uid_t uid) const {
    ASSERT_EQ(::fchownat(root(), name.c_str(), uid, 0, AT_SYMLINK_NOFOLLOW), 0);
  }
};

TEST_F(CountedAgainTest, ASuccessorCountsTheSame) {
  (void)leave("f", std::string(3 * kBlock, 'x'));
  give("f", kUser);
  ASSERT_EQ(::linkat(root(), "f", root(), "g", 0), 0);
  make_directory("d");
  give("d", kOther);
  ASSERT_EQ(::symlinkat(std::string(4000, 't').c_str(), root(), "l"), 0);
  give("l", kOther);
  const uint64_t written = leave("w");
  give("w", kOther);
  leave_open(written, {.writer = true});
  adopt();
  EXPECT_EQ(users(),
            (std::map<uid_t, std::pair<uint64_t, uint64_t>>{{kUser, {3 * kBlock + 2 * kInodeBytes, 0}},
                                                            {kOther, {2 * kBlock + 3 * kInodeBytes, 0}}}));
}

TEST_F(CountedAgainTest, WhatTheDiskHasCountsAfterATakeover) {
  const CatalogContent its = content(kUnitBytes, {{.start = 4, .count = 1}});
  (void)leave_cold("f", 5, its);
  give("f", kUser);
  commit_left(5, "f", its);
  recover();
  EXPECT_EQ(users()[kUser].second, kUnitBytes);
  EXPECT_LT(users()[kUser].first, 2 * kInodeBytes);
}

TEST_F(CountedAgainTest, WhatARestartBringsBackCounts) {
  CatalogNode file = test::file_node(5), directory = test::directory_node(6);
  file.uid = kUser;
  file.xattrs = {{"user.a", std::string(10'000, 'x')}};
  directory.uid = kOther;
  const CatalogContent its = content(kUnitBytes, {{.start = 4, .count = 1}});
  commit_left({PutNode{file}, PutName{kCatalogRoot, "f", 5}, PutContent{5, its}, PutNode{directory},
               PutName{kCatalogRoot, "d", 6}});
  ASSERT_TRUE(attach());
  ASSERT_TRUE(is_there("f") && is_there("d"));
  EXPECT_EQ(users()[kUser].second, kUnitBytes);
  EXPECT_GE(users()[kUser].first, kInodeBytes + 10'000 * kInodeBytes / kNameSpace);
  EXPECT_LT(users()[kUser].first, 13 * kInodeBytes);
  EXPECT_EQ(users()[kOther].first, kInodeBytes);
}

}  // namespace kvcachefs::counted_inode_test
