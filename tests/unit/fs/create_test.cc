// CREATE, TMPFILE, MKNOD, MKDIR and SYMLINK, as the kernel sends them.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>

#include "tests/support/served_test.h"
#include "tests/support/user_process.h"

namespace kvcachefs::create_test {

using test::FuseRequest;
using test::UserProcess;
using test::wire;
using test::wire_name;

constexpr uid_t kUser = 5;
constexpr gid_t kGroup = 6;

class CreateTest : public test::ServedTest {
 protected:
  static std::string mknod_body(std::string_view name, uint32_t mode) {
    return wire(fuse_mknod_in{.mode = mode, .rdev = 0, .umask = 0, .padding = 0}) + wire_name(name);
  }
  static std::string mkdir_body(std::string_view name, uint32_t mode = 0755) {
    return wire(fuse_mkdir_in{.mode = mode, .umask = 0}) + wire_name(name);
  }
  test::FuseAnswer ask_as_user(uint32_t opcode, uint64_t nodeid, std::string body) {
    return kernel_.ask(
        {.opcode = opcode, .nodeid = nodeid, .body = std::move(body), .uid = kUser, .gid = kGroup});
  }
};

TEST_F(CreateTest, AFileIsItsCallers) {
  const auto created = ask_as_user(FUSE_CREATE, root_, create_body("entry", O_RDWR, 0640));
  ASSERT_EQ(created.error, 0);
  const fuse_attr attributes = created.as<fuse_entry_out>().attr;
  EXPECT_EQ(attributes.mode, S_IFREG | 0640u);
  EXPECT_EQ(attributes.uid, kUser);
  EXPECT_EQ(attributes.gid, kGroup);
  EXPECT_EQ(attributes.ino, created.as<fuse_entry_out>().nodeid);
  EXPECT_EQ(open_handles(), 1u);
}

TEST_F(CreateTest, SetIdBitsStayWithTheNewOwner) {
  for (const uint32_t mode : {04755u, 02755u, 06711u}) {
    const std::string name = std::to_string(mode);
    const auto created = ask_as_user(FUSE_CREATE, root_, create_body(name, O_RDWR, mode));
    EXPECT_EQ(created.as<fuse_entry_out>().attr.mode, S_IFREG | mode);
    const auto made = ask_as_user(FUSE_MKNOD, root_, mknod_body(name + " made", S_IFREG | mode));
    EXPECT_EQ(made.as<fuse_entry_out>().attr.mode, S_IFREG | mode);
  }
}

TEST_F(CreateTest, ASetGroupIdDirectoryHandsItsGroupDown) {
  const uint64_t directory = make_directory(root_, "shared").as<fuse_entry_out>().nodeid;
  fuse_setattr_in mode{};
  mode.valid = FATTR_MODE;
  mode.mode = S_IFDIR | 02777;
  ASSERT_EQ(ask(FUSE_SETATTR, directory, wire(mode)).error, 0);
  const auto created = ask_as_user(FUSE_CREATE, directory, create_body("entry"));
  EXPECT_EQ(created.as<fuse_entry_out>().attr.uid, kUser);
  EXPECT_EQ(created.as<fuse_entry_out>().attr.gid, 0u);
  const auto below = ask_as_user(FUSE_MKDIR, directory, mkdir_body("below"));
  EXPECT_EQ(below.as<fuse_entry_out>().attr.mode, S_IFDIR | 02755u);
  EXPECT_EQ(below.as<fuse_entry_out>().attr.gid, 0u);
}

TEST_F(CreateTest, TheNameOfTheControlFilesIsTaken) {
  EXPECT_EQ(ask(FUSE_CREATE, root_, create_body(".pool")).error, EEXIST);
  EXPECT_EQ(ask(FUSE_MKNOD, root_, mknod_body(".pool", S_IFREG)).error, EEXIST);
  EXPECT_EQ(ask(FUSE_MKDIR, root_, mkdir_body(".pool")).error, EEXIST);
  EXPECT_EQ(ask(FUSE_SYMLINK, root_, wire_name(".pool") + wire_name("target")).error, EEXIST);
  const uint64_t directory = make_directory(root_, "directory").as<fuse_entry_out>().nodeid;
  EXPECT_EQ(ask(FUSE_CREATE, directory, create_body(".pool")).error, 0) << "only in the pool's root";
}

TEST_F(CreateTest, WhatExistsIsOpenedUnlessItIsToBeNew) {
  const File file = create("entry", "content");
  EXPECT_EQ(ask(FUSE_CREATE, root_, create_body("entry", O_RDWR | O_EXCL)).error, EEXIST);
  const auto opened = ask(FUSE_CREATE, root_, create_body("entry"));
  ASSERT_EQ(opened.error, 0);
  EXPECT_EQ(file_of(opened).nodeid, file.nodeid);
  EXPECT_NE(file_of(opened).handle, file.handle);
  EXPECT_EQ(opened.as<fuse_entry_out>().attr.size, 7u);
  const auto cut = ask(FUSE_CREATE, root_, create_body("entry", O_WRONLY | O_TRUNC));
  ASSERT_EQ(cut.error, 0);
  EXPECT_EQ(cut.as<fuse_entry_out>().attr.size, 0u) << "the kernel does not cut what it has created";
  EXPECT_EQ(open_handles(), 3u);
}

TEST_F(CreateTest, WhatIsNoFileIsLookedAtAgain) {
  make_directory(root_, "directory");
  EXPECT_EQ(ask(FUSE_CREATE, root_, create_body("directory")).error, ESTALE);
  EXPECT_EQ(open_handles(), 0u);
}

TEST_F(CreateTest, NothingElseIsMadeTwice) {
  create("entry");
  EXPECT_EQ(ask(FUSE_MKNOD, root_, mknod_body("entry", S_IFREG | 0600)).error, EEXIST);
  EXPECT_EQ(ask(FUSE_MKDIR, root_, mkdir_body("entry")).error, EEXIST);
  EXPECT_EQ(ask(FUSE_SYMLINK, root_, wire_name("entry") + wire_name("target")).error, EEXIST);
}

TEST_F(CreateTest, AMissingParentIsStaleAndAFileIsNone) {
  const File file = create("entry");
  EXPECT_EQ(ask(FUSE_CREATE, file.nodeid, create_body("below")).error, ENOTDIR);
  EXPECT_EQ(ask(FUSE_MKDIR, file.nodeid, mkdir_body("below")).error, ENOTDIR);
  EXPECT_EQ(ask(FUSE_CREATE, NodeId::of_inode(1, 1 << 30).value, create_body("below")).error, ESTALE);
  EXPECT_EQ(ask(FUSE_CREATE, root_, create_body(std::string(256, 'x'))).error, ENAMETOOLONG);
  EXPECT_EQ(open_handles(), 1u);
}

TEST_F(CreateTest, OnlyDirectoriesOfPoolsTakeFiles) {
  EXPECT_EQ(ask(FUSE_CREATE, NodeId::kRoot, create_body("entry")).error, EPERM);
  EXPECT_EQ(ask(FUSE_MKNOD, NodeId::kRoot, mknod_body("entry", S_IFREG | 0600)).error, EPERM);
  EXPECT_EQ(ask(FUSE_SYMLINK, NodeId::kRoot, wire_name("link") + wire_name("target")).error, EPERM);
  EXPECT_EQ(ask(FUSE_CREATE, NodeId::kMountControl, create_body("entry")).error, EPERM);
  EXPECT_EQ(ask(FUSE_MKDIR, NodeId::kPoolsDirectory, mkdir_body("pool")).error, EPERM);
}

TEST_F(CreateTest, ACreateThatIsSentAgainIsTheSameOne) {
  const FuseRequest request{
      .opcode = FUSE_CREATE, .nodeid = root_, .body = create_body("entry", O_RDWR | O_EXCL)};
  const auto first = kernel_.ask(request);
  ASSERT_EQ(first.error, 0);
  const auto again = kernel_.ask_again(request);
  EXPECT_EQ(again.error, 0) << "although the name exists by now";
  EXPECT_EQ(file_of(again).nodeid, file_of(first).nodeid);
  EXPECT_EQ(file_of(again).handle, file_of(first).handle);
  EXPECT_EQ(open_handles(), 1u);
  EXPECT_EQ(kernel_.ask(request).error, EEXIST) << "another request";
}

// The process died when it had opened what is there, and before it cut it.
TEST_F(CreateTest, ACreateThatIsSentAgainCutsWhatItFound) {
  const File file = create("entry");
  EXPECT_EQ(write(file, 0, "content").error, 0);
  const FuseRequest request{
      .opcode = FUSE_CREATE, .nodeid = root_, .body = create_body("entry", O_WRONLY | O_TRUNC)};
  ASSERT_EQ(kernel_.ask(request).error, 0);
  EXPECT_EQ(write(file, 0, "content").error, 0);
  const auto again = kernel_.ask_again(request);
  ASSERT_EQ(again.error, 0);
  EXPECT_EQ(again.as<fuse_entry_out>().attr.size, 0u);
  EXPECT_EQ(read(file, 0, 100).bytes, "");
}

TEST_F(CreateTest, AFileWithoutANameIsOpen) {
  const FuseRequest request{.opcode = FUSE_TMPFILE, .nodeid = root_, .body = create_body("", O_RDWR, 0600)};
  const auto made = kernel_.ask(request);
  ASSERT_EQ(made.error, 0);
  EXPECT_EQ(made.as<fuse_entry_out>().attr.nlink, 0u);
  EXPECT_EQ(write(file_of(made), 0, "content").error, 0);
  EXPECT_EQ(read(file_of(made), 0, 100).bytes, "content");
  const auto again = kernel_.ask(request);
  EXPECT_NE(file_of(again).nodeid, file_of(made).nodeid);
  EXPECT_EQ(file_of(kernel_.ask_again(request)).nodeid, file_of(again).nodeid);
  EXPECT_EQ(ask(FUSE_TMPFILE, file_of(made).nodeid, create_body("")).error, ENOTDIR);
}

TEST_F(CreateTest, ADirectoryInTheMountsRootIsAPool) {
  const auto made = ask(FUSE_MKDIR, NodeId::kRoot, mkdir_body("new", 0700));
  ASSERT_EQ(made.error, 0);
  EXPECT_EQ(made.as<fuse_entry_out>().attr.mode, S_IFDIR | 0700u);
  EXPECT_EQ(pools_changed_, 1);
  ASSERT_NE(pools_->find("new"), nullptr);
  EXPECT_EQ(ask(FUSE_MKDIR, NodeId::kRoot, mkdir_body("new")).error, EEXIST);
  EXPECT_EQ(ask(FUSE_MKDIR, NodeId::kRoot, mkdir_body(".kvcachefs")).error, EEXIST);
  EXPECT_EQ(ask(FUSE_MKDIR, NodeId::kRoot, mkdir_body("a\nb")).error, EINVAL);
  EXPECT_EQ(pools_changed_, 1);
}

TEST_F(CreateTest, OnlyAnAdministratorMakesAPool) {
  UserProcess user(kUser, kGroup);
  FuseRequest request{
      .opcode = FUSE_MKDIR, .nodeid = NodeId::kRoot, .body = mkdir_body("new"), .pid = user.pid()};
  EXPECT_EQ(kernel_.ask(request).error, EPERM) << "though it says that it is user 0";
  user.end();
  EXPECT_EQ(kernel_.ask(request).error, EPERM) << "a thread that is gone is trusted with nothing";
  EXPECT_EQ(pools_->find("new"), nullptr);
  request.pid = 0;
  EXPECT_EQ(kernel_.ask(request).error, EPERM) << "a thread of another PID namespace";
}

}  // namespace kvcachefs::create_test
