// LOOKUP and FORGET, as the kernel sends them.
#include <cerrno>

#include "tests/support/served_test.h"

namespace kvcachefs::lookup_test {

using test::wire;
using test::wire_name;

constexpr uint64_t kYearS = 31'000'000;

class LookupTest : public test::ServedTest {
 protected:
  void forget(uint64_t nodeid, uint64_t lookups) {
    kernel_.tell({.opcode = FUSE_FORGET, .nodeid = nodeid, .body = wire(fuse_forget_in{.nlookup = lookups})});
  }
  int getattr(uint64_t nodeid) { return error_to_new_thread(FUSE_GETATTR, nodeid, wire(fuse_getattr_in{})); }
  // A file that only the kernel's knowledge of it keeps.
  uint64_t nameless() {
    const File file = create("nameless");
    EXPECT_EQ(unlink("nameless").error, 0);
    EXPECT_EQ(release(file).error, 0);
    return file.nodeid;
  }
};

TEST_F(LookupTest, TheMountsRootLeadsToPoolsAndToItsControlFiles) {
  EXPECT_EQ(root_, NodeId::of_inode(1, pools_->find("p")->root_ino()).value);
  EXPECT_EQ(nodeid_of(NodeId::kRoot, ".kvcachefs"), NodeId::kMountControl);
  EXPECT_EQ(nodeid_of(NodeId::kRoot, ".pool"), 0u);
  const auto missing = lookup(NodeId::kRoot, "missing");
  EXPECT_EQ(missing.error, ENOENT) << "a miss is not remembered: `configure` makes pools, too";
}

TEST_F(LookupTest, APoolsRootAloneHasControlFiles) {
  EXPECT_EQ(nodeid_of(root_, ".pool"), NodeId::of_control(1, 0).value);
  const uint64_t directory = make_directory(root_, "directory").as<fuse_entry_out>().nodeid;
  EXPECT_EQ(nodeid_of(directory, ".pool"), 0u);
  EXPECT_EQ(nodeid_of(root_, ".kvcachefs"), 0u);
}

TEST_F(LookupTest, ControlFilesAreFoundByName) {
  EXPECT_NE(nodeid_of(NodeId::kMountControl, "version"), 0u);
  EXPECT_EQ(nodeid_of(NodeId::kMountControl, "pools"), NodeId::kPoolsDirectory);
  EXPECT_EQ(nodeid_of(NodeId::kMountControl, "nothing"), 0u);
  const auto pool = lookup(NodeId::kPoolsDirectory, "p").as<fuse_entry_out>();
  EXPECT_EQ(pool.nodeid, NodeId::of_administrators(1, 0).value);
  EXPECT_EQ(pool.entry_valid, 0u) << "another pool may get the number";
  EXPECT_EQ(lookup(NodeId::kPoolsDirectory, "q").error, ENOENT) << "a pool may come: no miss is remembered";
}

TEST_F(LookupTest, AttributesOfAFileThatIsBeingWrittenAreAskedForAgain) {
  const File file = create("entry", "content");
  auto found = lookup(root_, "entry").as<fuse_entry_out>();
  EXPECT_EQ(found.nodeid, file.nodeid);
  EXPECT_EQ(found.attr.ino, file.nodeid);
  EXPECT_EQ(found.attr.size, 7u);
  EXPECT_EQ(found.attr_valid, 0u);
  EXPECT_GT(found.entry_valid, kYearS);
  EXPECT_EQ(release(file).error, 0);
  found = lookup(root_, "entry").as<fuse_entry_out>();
  EXPECT_GT(found.attr_valid, kYearS);
}

TEST_F(LookupTest, AMissIsCounted) {
  EXPECT_EQ(nodeid_of(root_, "missing"), 0u);
  EXPECT_EQ(pools_->find("p")->counters().lookups_missed, 1u);
  EXPECT_EQ(lookup(root_, std::string(256, 'x')).error, ENAMETOOLONG);
  EXPECT_EQ(pools_->find("p")->counters().lookups_missed, 1u) << "there can be no such name";
  const File file = create("entry");
  EXPECT_EQ(lookup(file.nodeid, "below").error, ENOTDIR);
}

TEST_F(LookupTest, AnInodeGoesWithItsLastLookup) {
  const File file = create("entry");
  EXPECT_EQ(nodeid_of(root_, "entry"), file.nodeid);
  EXPECT_EQ(unlink("entry").error, 0);
  EXPECT_EQ(release(file).error, 0);
  EXPECT_EQ(getattr(file.nodeid), 0);
  forget(file.nodeid, 1);
  EXPECT_EQ(getattr(file.nodeid), 0) << "it was looked up twice";
  forget(file.nodeid, 1);
  EXPECT_EQ(getattr(file.nodeid), ESTALE);
}

TEST_F(LookupTest, WhatIsForgottenOfOthersChangesNothing) {
  const uint64_t nodeid = nameless();
  forget(NodeId::kRoot, 1);
  forget(NodeId::kMountControl, 1);
  forget(NodeId::of_inode(9, 1).value, 1);
  EXPECT_EQ(getattr(nodeid), 0);
}

TEST_F(LookupTest, ManyAreForgottenAtOnce) {
  const uint64_t one = nameless(), other = nameless(), kept = nameless();
  const std::string body = wire(fuse_batch_forget_in{.count = 4, .dummy = 0}) +
                           wire(fuse_forget_one{.nodeid = one, .nlookup = 1}) +
                           wire(fuse_forget_one{.nodeid = NodeId::kMountControl, .nlookup = 1}) +
                           wire(fuse_forget_one{.nodeid = NodeId::of_inode(9, 1).value, .nlookup = 1}) +
                           wire(fuse_forget_one{.nodeid = other, .nlookup = 1});
  kernel_.tell({.opcode = FUSE_BATCH_FORGET, .nodeid = 0, .body = body});
  EXPECT_EQ(getattr(kept), 0);
  EXPECT_EQ(getattr(one), ESTALE);
  EXPECT_EQ(getattr(other), ESTALE);
}

}  // namespace kvcachefs::lookup_test
