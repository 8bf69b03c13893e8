// UNLINK, RMDIR, RENAME and LINK, as the kernel sends them.
#include <linux/fs.h>

#include <cerrno>

#include "tests/support/served_test.h"
#include "tests/support/user_process.h"

namespace kvcachefs::names_test {

using test::FuseRequest;
using test::UserProcess;
using test::wire;
using test::wire_name;

class NamesTest : public test::ServedTest {
 protected:
  static std::string rename_body(uint64_t new_parent, std::string_view name, std::string_view new_name,
                                 uint32_t flags = 0) {
    return wire(fuse_rename2_in{.newdir = new_parent, .flags = flags, .padding = 0}) + wire_name(name) +
           wire_name(new_name);
  }
  int rename(uint64_t parent, std::string_view name, uint64_t new_parent, std::string_view new_name,
             uint32_t flags = 0) {
    return ask(FUSE_RENAME2, parent, rename_body(new_parent, name, new_name, flags)).error;
  }
  test::FuseAnswer link(uint64_t nodeid, uint64_t new_parent, std::string_view name) {
    return ask(FUSE_LINK, new_parent, wire(fuse_link_in{.oldnodeid = nodeid}) + wire_name(name));
  }
  // Does the rename as a process that dies before it answers: what that wrote down is there.
  void do_and_die(const FuseRequest& request, const File& first, const File& second) {
    const uint64_t unique = kernel_.tell(request);
    EXPECT_EQ(kernel_.answer_to(unique).error, 0);
    Requests& requests = survivors_->requests();
    EXPECT_TRUE(test::eventually([&] { return !requests.attempted_rename(unique); })) << "it is answered";
    requests.attempt_rename(unique, NodeId{first.nodeid}.ino(), NodeId{second.nodeid}.ino());
  }
  int rmdir(uint64_t parent, std::string_view name) { return ask(FUSE_RMDIR, parent, wire_name(name)).error; }
  uint64_t directory(std::string_view name) {
    return make_directory(root_, name).as<fuse_entry_out>().nodeid;
  }
};

TEST_F(NamesTest, ARemovedNameIsGone) {
  create("entry");
  EXPECT_EQ(unlink("entry").error, 0);
  EXPECT_EQ(nodeid_of(root_, "entry"), 0u);
  EXPECT_EQ(unlink("entry").error, ENOENT);
  directory("directory");
  EXPECT_EQ(rmdir(root_, "directory"), 0);
  EXPECT_EQ(rmdir(root_, "directory"), ENOENT);
}

TEST_F(NamesTest, OnlyAnEmptyDirectoryIsRemovedAndOnlyAsOne) {
  const uint64_t full = directory("full");
  EXPECT_EQ(ask(FUSE_CREATE, full, create_body("entry")).error, 0);
  EXPECT_EQ(rmdir(root_, "full"), ENOTEMPTY);
  EXPECT_EQ(unlink("full").error, EISDIR);
  EXPECT_EQ(rmdir(full, "entry"), ENOTDIR);
  EXPECT_EQ(ask(FUSE_UNLINK, full, wire_name("entry")).error, 0);
  EXPECT_EQ(rmdir(root_, "full"), 0);
}

TEST_F(NamesTest, TheControlFilesKeepTheirNames) {
  create("entry");
  EXPECT_EQ(unlink(".pool").error, EPERM);
  EXPECT_EQ(rmdir(root_, ".pool"), EPERM);
  EXPECT_EQ(rename(root_, ".pool", root_, "mine"), EPERM);
  EXPECT_EQ(rename(root_, "entry", root_, ".pool"), EPERM);
  EXPECT_EQ(link(nodeid_of(root_, "entry"), root_, ".pool").error, EEXIST);
  EXPECT_EQ(rmdir(NodeId::kRoot, ".kvcachefs"), EPERM);
  EXPECT_NE(nodeid_of(root_, "entry"), 0u);
  const uint64_t below = directory("below");
  EXPECT_EQ(rename(root_, "entry", below, ".pool"), 0) << "in any other directory it is a name";
}

TEST_F(NamesTest, ARenameReplacesUnlessToldOtherwise) {
  const File a = create("a", "a");
  const File b = create("b", "b");
  EXPECT_EQ(rename(root_, "a", root_, "b", RENAME_NOREPLACE), EEXIST);
  EXPECT_EQ(rename(root_, "a", root_, "b", RENAME_EXCHANGE), 0);
  EXPECT_EQ(nodeid_of(root_, "a"), b.nodeid);
  EXPECT_EQ(nodeid_of(root_, "b"), a.nodeid);
  EXPECT_EQ(rename(root_, "a", root_, "c", RENAME_EXCHANGE), ENOENT);
  EXPECT_EQ(rename(root_, "a", root_, "b"), 0);
  EXPECT_EQ(nodeid_of(root_, "a"), 0u);
  EXPECT_EQ(nodeid_of(root_, "b"), b.nodeid);
  EXPECT_EQ(rename(root_, "a", root_, "b"), ENOENT);
}

TEST_F(NamesTest, ADirectoryDoesNotMoveIntoItself) {
  const uint64_t outer = directory("outer");
  const uint64_t inner = make_directory(outer, "inner").as<fuse_entry_out>().nodeid;
  EXPECT_EQ(rename(root_, "outer", inner, "outer"), EINVAL);
  create("entry");
  EXPECT_EQ(rename(root_, "entry", root_, "outer"), EISDIR);
  EXPECT_EQ(rename(root_, "outer", root_, "entry"), ENOTDIR);
}

TEST_F(NamesTest, NothingMovesBetweenPools) {
  make(options("q"));
  const uint64_t other = nodeid_of(NodeId::kRoot, "q");
  const File file = create("entry");
  EXPECT_EQ(rename(root_, "entry", other, "entry"), EXDEV);
  EXPECT_EQ(link(file.nodeid, other, "entry").error, EXDEV);
  EXPECT_EQ(rename(root_, "entry", NodeId::kRoot, "entry"), EXDEV);
  EXPECT_EQ(link(file.nodeid, NodeId::kRoot, "entry").error, EXDEV);
  EXPECT_EQ(rename(NodeId::kRoot, "q", root_, "q"), EXDEV);
  EXPECT_EQ(rename(NodeId::kRoot, "q", NodeId::kRoot, "r"), EPERM) << "a pool keeps its name";
  EXPECT_EQ(rename(root_, "entry", NodeId::kMountControl, "entry"), EPERM);
}

TEST_F(NamesTest, ALinkIsASecondName) {
  const File file = create("entry");
  const auto linked = link(file.nodeid, root_, "link");
  ASSERT_EQ(linked.error, 0);
  EXPECT_EQ(linked.as<fuse_entry_out>().nodeid, file.nodeid);
  EXPECT_EQ(linked.as<fuse_entry_out>().attr.nlink, 2u);
  EXPECT_EQ(link(file.nodeid, root_, "link").error, EEXIST);
  EXPECT_EQ(unlink("entry").error, 0);
  EXPECT_EQ(nodeid_of(root_, "link"), file.nodeid);
  EXPECT_EQ(link(directory("directory"), root_, "other").error, EPERM);
  EXPECT_EQ(nodeid_of(root_, "other"), 0u);
}

TEST_F(NamesTest, WhatHasNoNameAnyMoreGetsNone) {
  const File file = create("entry");
  EXPECT_EQ(unlink("entry").error, 0);
  EXPECT_EQ(link(file.nodeid, root_, "link").error, ENOENT);
  EXPECT_EQ(nodeid_of(root_, "link"), 0u);
}

TEST_F(NamesTest, ARenameThatIsSentAgainHasBeenDone) {
  const File a = create("a");
  const FuseRequest request{.opcode = FUSE_RENAME2, .nodeid = root_, .body = rename_body(root_, "a", "b")};
  do_and_die(request, a, {});
  EXPECT_EQ(kernel_.ask_again(request).error, 0) << "although there is no such name any more";
  EXPECT_EQ(nodeid_of(root_, "b"), a.nodeid);
  EXPECT_EQ(kernel_.ask(request).error, ENOENT) << "another request";
}

TEST_F(NamesTest, AnExchangeThatIsSentAgainIsNotDoneTwice) {
  const File a = create("a"), b = create("b");
  const FuseRequest request{
      .opcode = FUSE_RENAME2, .nodeid = root_, .body = rename_body(root_, "a", "b", RENAME_EXCHANGE)};
  do_and_die(request, a, b);
  EXPECT_EQ(kernel_.ask_again(request).error, 0);
  EXPECT_EQ(nodeid_of(root_, "b"), a.nodeid);
}

TEST_F(NamesTest, AnEmptyPoolIsRemovedByAnAdministrator) {
  make(options("q"));
  const UserProcess user(5, 6);
  const FuseRequest request{
      .opcode = FUSE_RMDIR, .nodeid = NodeId::kRoot, .body = wire_name("q"), .pid = user.pid()};
  EXPECT_EQ(kernel_.ask(request).error, EPERM);
  EXPECT_NE(pools_->find("q"), nullptr);
  EXPECT_EQ(pools_changed_, 0);
  EXPECT_EQ(rmdir(NodeId::kRoot, "q"), 0);
  EXPECT_EQ(pools_->find("q"), nullptr);
  EXPECT_EQ(pools_changed_, 1);
  EXPECT_EQ(rmdir(NodeId::kRoot, "q"), ENOENT);
  create("entry");
  EXPECT_EQ(rmdir(NodeId::kRoot, "p"), ENOTEMPTY);
  EXPECT_EQ(unlink("entry").error, 0);
}

}  // namespace kvcachefs::names_test
