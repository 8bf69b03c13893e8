// What comes back of a pool from its catalog after a start, and how an adopted pool goes on without its disk.
#include <gmock/gmock.h>
#include <sys/xattr.h>

#include <cerrno>

#include "tests/support/recovery_test.h"

namespace kvcachefs::recovery_test {

using test::code_of;
using test::directory_node;
using test::file_node;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Tier = Entry::Tier;

class RecoveryAttachTest : public test::RecoveryTest {
 protected:
  // /d 2 with the file 3, which is also /link, and the symlink /s 4.
  void commit_tree() {
    CatalogNode directory = directory_node(2), file = file_node(3, 0640), symlink;
    directory.mode = S_IFDIR | 02750;
    directory.uid = file.uid = 7;
    directory.gid = file.gid = 8;
    directory.modified = {1000, 5};
    file.modified = {2000, 6};
    file.xattrs = {{"user.k", "v"}, {"user.kv.priority", "4"}};
    symlink.id = 4;
    symlink.mode = S_IFLNK | 0777;
    symlink.link_target = "d/file";
    commit_left({PutNode{directory}, PutName{kCatalogRoot, "d", 2}, PutNode{file}, PutName{2, "file", 3},
                 PutName{kCatalogRoot, "link", 3}, PutContent{3, content_}, PutNode{symlink},
                 PutName{kCatalogRoot, "s", 4}});
  }
  const CatalogContent content_ = content(10'000, {{5, 2}}, 9);
};

TEST_F(RecoveryAttachTest, TheTreeComesBack) {
  commit_tree();
  ASSERT_TRUE(attach());
  const struct stat d = status("d"), file = status("link");
  EXPECT_EQ(d.st_mode, S_IFDIR | 02750u);
  EXPECT_EQ(d.st_uid, 7u);
  EXPECT_EQ(d.st_mtim.tv_sec, 1000);
  EXPECT_EQ(file.st_ino, ino("d/file"));
  EXPECT_EQ(file.st_mode, S_IFREG | 0640u);
  EXPECT_EQ(file.st_gid, 8u);
  EXPECT_EQ(file.st_size, 10'000);
  EXPECT_EQ(file.st_mtim.tv_nsec, 6);
  char text[8] = {};
  EXPECT_EQ(::readlinkat(root(), "s", text, sizeof text), 6);
  EXPECT_EQ(::fgetxattr(open("link").get(), "user.k", text, sizeof text), 1);
}

TEST_F(RecoveryAttachTest, RootsFileInADirectoryThatGivesItsGroupIsRoots) {
  CatalogNode directory = directory_node(2);
  directory.mode = S_IFDIR | 02777;
  directory.gid = 8;
  commit_left({PutNode{directory}, PutName{kCatalogRoot, "d", 2}, PutNode{file_node(3, 0640)},
               PutName{2, "file", 3}, PutContent{3, content_}});
  ASSERT_TRUE(attach());
  EXPECT_EQ(status("d/file").st_gid, 0u);
  EXPECT_EQ(status("d/file").st_mode, S_IFREG | 0640u);
}

TEST_F(RecoveryAttachTest, ItsFilesAreColdEntries) {
  commit_tree();
  ASSERT_TRUE(attach());
  const uint64_t f = ino("link");
  EXPECT_EQ(state(f).tier, Tier::kCold);
  EXPECT_EQ(state(f).stage, Entry::Stage::kCandidate);
  EXPECT_EQ(state(f).node_id, 3u);
  EXPECT_EQ(state(f).version, 9u);
  EXPECT_EQ(state(f).charged_bytes, 3 * kBlock) << "what it takes in memory";
  EXPECT_EQ(entry(f).policy.priority, 4);
  EXPECT_EQ(copy(f), content_);
  EXPECT_EQ(status("link").st_blocks, 0);
  EXPECT_EQ(used_units(), 2u) << "its place on the disk is taken";
  EXPECT_EQ(entries_.sums().files(), 1u);
  EXPECT_EQ(capacity_->expected_entry_bytes(), 10'000u);
  EXPECT_EQ(disk_->durability(), Durability::kWriteback);
}

TEST_F(RecoveryAttachTest, ASuccessorLearnsOfTheDiskBeforeTheFirstName) {
  commit_tree();
  std::vector<bool> begun;
  surroundings_.options_changed = [&] {
    begun.push_back(restoring_up_to(root()) && settings_->options().spill_path == "disk" && !is_there("d"));
    return Result<void>();
  };
  ASSERT_TRUE(attach());
  EXPECT_EQ(begun, std::vector{true});
  EXPECT_FALSE(restoring_up_to(root()));
  const auto mark = copy_mark_of(open("link").get());
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->state, CopyMark::State::kCold);
  EXPECT_EQ(mark->node_id, 3u);
  EXPECT_EQ(mark->content, content_);
  EXPECT_EQ(copy_mark_of(open("d", O_RDONLY).get())->node_id, 2u);
}

TEST_F(RecoveryAttachTest, TheOldestLeaveTheDiskFirst) {
  CatalogNode older = file_node(2), newer = file_node(3);
  older.modified = {1000, 0};
  newer.modified = {1000, 1};
  commit_left({PutNode{newer}, PutName{kCatalogRoot, "newer", 3}, PutContent{3, content(1, {{1, 1}})},
               PutNode{older}, PutName{kCatalogRoot, "older", 2}, PutContent{2, content(1, {{2, 1}})}});
  ASSERT_TRUE(attach());
  EXPECT_EQ(entries_.candidates().next_cold(), ino("older"));
  EXPECT_EQ(entries_.candidates().next_cold(), ino("newer"));
}

TEST_F(RecoveryAttachTest, APinnedOneIsPromoted) {
  CatalogNode pinned = file_node(2);
  pinned.pinned = true;
  commit_left({PutNode{pinned}, PutName{kCatalogRoot, "f", 2}, PutContent{2, content(1, {{1, 1}})}});
  ASSERT_TRUE(attach());
  EXPECT_TRUE(state(ino("f")).pinned);
  EXPECT_TRUE(state(ino("f")).parked);
  EXPECT_EQ(tier().promoter.queued(), 1u);
}

TEST_F(RecoveryAttachTest, WhatCannotBeOnTheDiskIsDropped) {
  commit_left(2, "beyond", content(1, {{kUnits, 1}}));
  commit_left(3, "short", content(kUnitBytes + 1, {{1, 1}}));
  commit_left(4, "whole", content(1, {{1, 1}}));
  commit_left(5, "shared", content(1, {{1, 1}}));
  ASSERT_TRUE(attach());
  EXPECT_TRUE(is_there("whole"));
  for (const char* name : {"beyond", "short", "shared"}) {
    EXPECT_FALSE(is_there(name)) << name;
    EXPECT_EQ(catalogued(name), 0u) << name;
  }
  EXPECT_EQ(used_units(), 1u);
}

TEST_F(RecoveryAttachTest, APoolThatServesHasTheKernelLookAgainAndSpillsWhatItHas) {
  const uint64_t old = store("old");
  struct stat attributes = status(".");
  ASSERT_TRUE(inodes_->looked_up(arena_->tree(), attributes));
  make_directory("there");
  commit_tree();
  ASSERT_TRUE(attach());
  ASSERT_EQ(heard_.come.size(), 4u);
  EXPECT_EQ(heard_.come[0].name, "d");
  EXPECT_EQ(heard_.come[0].parent_ino, arena_->tree().ino);
  EXPECT_TRUE(state(old).spill_queued);
  EXPECT_NE(catalogued("there"), 0u) << "the catalog hears of what was there before it";
}

TEST_F(RecoveryAttachTest, AfterAnErrorAllIsAsItWas) {
  commit_tree();
  ASSERT_EQ(::symlinkat("elsewhere", root(), "d"), 0) << "no directory";
  surroundings_.options_changed = [] { return fail(ENOSPC, "full"); };
  const auto refused = attach();
  EXPECT_EQ(code_of(refused), ENOSPC);
  EXPECT_EQ(disk_->tier(), nullptr);
  EXPECT_FALSE(disk_->restoring());
  EXPECT_FALSE(restoring_up_to(root()));
  EXPECT_EQ(settings_->options().spill_path, "");
  EXPECT_FALSE(is_there("link"));
  EXPECT_EQ(entries_.sums().files(), 0u);
}

TEST_F(RecoveryAttachTest, APoolGetsOneDiskTier) {
  ASSERT_TRUE(attach());
  const auto refused =
      recovery_->attach_disk(std::make_unique<test::FaultyDisk>(test::FaultyDiskOptions{}),
                             std::move(*Catalog::open(place_ / "other")), kUnitBytes, options_);
  EXPECT_EQ(code_of(refused), EEXIST);
}

class RecoveryAwayTest : public test::RecoveryTest {
 protected:
  Result<void> go_on() { return recovery_->go_on_without_disk(options_, Error{EIO, "it is gone"}); }
};

TEST_F(RecoveryAwayTest, TheMarksSayWhatTheDiskHas) {
  const auto its = content(kBlock, {{1, 1}}, 6);
  const uint64_t dirty = leave_dirty("dirty", 2, 3), clean = leave_clean("clean", 3, its);
  const uint64_t cold = leave_cold("cold", 4, content(3 * kBlock, {{0, 1}, {2, 1}})), plain = leave("plain");
  adopt();
  ASSERT_TRUE(go_on());
  ASSERT_NE(disk_->away(), nullptr);
  EXPECT_EQ(disk_->tier(), nullptr);
  EXPECT_EQ(state(dirty).tier, Tier::kDirty);
  EXPECT_EQ(state(dirty).node_id, 2u);
  EXPECT_EQ(state(dirty).first_version, 3u);
  EXPECT_EQ(state(clean).tier, Tier::kClean);
  EXPECT_EQ(state(clean).version, 6u);
  EXPECT_EQ(copy(clean), its);
  EXPECT_EQ(state(cold).tier, Tier::kCold);
  EXPECT_EQ(state(cold).charged_bytes, kBlock) << "without its hole";
  EXPECT_EQ(state(plain).node_id, 0u);
  EXPECT_TRUE(insight_->spill_usage().away);
  EXPECT_EQ(disk_->durability(), Durability::kWriteback);
  EXPECT_EQ(disk_->presence_of_cold(), Presence::kCold) << "it is waited for";
}

TEST_F(RecoveryAwayTest, WhatIsReadFromTheDiskStaysHeld) {
  const uint64_t f = leave_cold("f", 4, content(kBlock, {{1, 1}}));
  leave_open(f, {.from_disk = true});
  adopt();
  ASSERT_TRUE(go_on());
  EXPECT_TRUE(is_held(f));
}

TEST_F(RecoveryAwayTest, AnUnfinishedRestoreGoesOnLater) {
  ASSERT_TRUE(put_restoring(root(), 0));
  const uint64_t cold = leave_cold("cold", 4, content(kBlock, {{1, 1}}));
  adopt();
  ASSERT_TRUE(go_on());
  EXPECT_TRUE(disk_->restoring());
  EXPECT_EQ(code_of(tree_->remove(root(), "cold", false)), EBUSY);
  EXPECT_EQ(state(cold).tier, Tier::kCold);
}

}  // namespace kvcachefs::recovery_test
