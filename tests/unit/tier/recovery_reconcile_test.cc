// An adopted pool and its catalog are made to agree: what is in the tmpfs is true, and what the catalog has
// of it stays until something newer is committed.
#include <gmock/gmock.h>

#include <cerrno>

#include "tests/support/recovery_test.h"

namespace kvcachefs::recovery_reconcile_test {

using test::file_node;
using Tier = Entry::Tier;

class RecoveryReconcileTest : public test::RecoveryTest {
 protected:
  const CatalogContent content_ = content(kBlock, {{1, 1}}, 5);
  // A file that a client has open for writing and has cut to nothing when its name was `emptied_as`.
  uint64_t leave_emptied(const std::string& name, uint64_t id, const std::string& emptied_as) {
    const uint64_t left = leave(name);
    mark(name, {.state = CopyMark::State::kNone,
                .node_id = id,
                .first_version = content_.version + 1,
                .emptied_as = place_hash(arena_->tree().ino, emptied_as),
                .content = {}});
    return left;
  }
  std::optional<CatalogContent> committed(uint64_t id) {
    commit();
    return test::content_in(tier().store->catalog(), id);
  }
};

TEST_F(RecoveryReconcileTest, WhatBothHaveIsCleanOrCold) {
  const auto other = content(kBlock, {{2, 1}}, 6);
  const uint64_t clean = leave_clean("clean", 2, content_), cold = leave_cold("cold", 3, other);
  commit_left(2, "clean", content_);
  commit_left(3, "cold", other);
  recover();
  EXPECT_EQ(state(clean).tier, Tier::kClean);
  EXPECT_EQ(state(clean).node_id, 2u);
  EXPECT_EQ(state(clean).version, 5u);
  EXPECT_EQ(copy(clean), content_);
  EXPECT_EQ(state(cold).tier, Tier::kCold);
  EXPECT_EQ(copy(cold), other);
  EXPECT_EQ(used_units(), 2u);
  EXPECT_EQ(disk_->durability(), Durability::kWriteback);
  EXPECT_GT(tier().store->new_id(), 3u);
}

TEST_F(RecoveryReconcileTest, AColdEntryCountsForWhatItWouldTake) {
  const auto small = content(100, {{2, 1}}, 6);
  const uint64_t cold = leave_cold("cold", 3, small);
  commit_left(3, "cold", small);
  recover();
  EXPECT_EQ(state(cold).charged_bytes, kBlock);
}

TEST_F(RecoveryReconcileTest, TheCatalogHearsOfChangedAttributes) {
  (void)leave_clean("f", 2, content_);
  commit_left(2, "f", content_);
  ASSERT_EQ(::fchmodat(root(), "f", 0604, 0), 0);
  recover();
  EXPECT_EQ(node(2)->mode, S_IFREG | 0604u);
}

TEST_F(RecoveryReconcileTest, ACleanFileWhoseCopyTheCatalogDoesNotNameIsDirty) {
  const uint64_t f = leave_clean("f", 7, content_);
  recover();
  EXPECT_EQ(state(f).tier, Tier::kDirty) << "a flush that failed may have lost it";
  EXPECT_FALSE(copy(f));
  EXPECT_EQ(catalogued("f"), 0u);
  EXPECT_EQ(promised_number(copy_mark_of(open("f").get())), 7u);
}

TEST_F(RecoveryReconcileTest, TheCatalogGetsWhatItLacks) {
  const uint64_t f = leave_cold("f", 7, content_);
  recover();
  EXPECT_EQ(catalogued("f"), 7u);
  EXPECT_EQ(committed(7), content_);
  EXPECT_EQ(state(f).tier, Tier::kCold);
  EXPECT_GT(tier().store->new_id(), 7u) << "no number is given twice";
}

TEST_F(RecoveryReconcileTest, TheCatalogGetsTheNewerContent) {
  const auto newer = content(2 * kBlock, {{9, 1}}, 6);
  (void)leave_cold("f", 2, newer);
  commit_left(2, "f", content_);
  recover();
  EXPECT_EQ(committed(2), newer);
  EXPECT_EQ(used_units(), 1u) << "that of the older content is free";
}

TEST_F(RecoveryReconcileTest, TheCatalogLosesWhatIsGone) {
  commit_left(2, "gone", content_);
  commit_left(3, "moved", content(kBlock, {{3, 1}}));
  const uint64_t f = leave_clean("here", 3, content(kBlock, {{3, 1}}));
  recover();
  EXPECT_EQ(catalogued("gone"), 0u);
  EXPECT_EQ(catalogued("moved"), 0u);
  EXPECT_EQ(catalogued("here"), 3u);
  EXPECT_EQ(state(f).tier, Tier::kClean);
  EXPECT_EQ(used_units(), 1u);
}

TEST_F(RecoveryReconcileTest, AFileKeepsAllItsNames) {
  (void)leave_clean("f", 2, content_);
  ASSERT_EQ(::linkat(root(), "f", root(), "g", 0), 0);
  commit_left(2, "f", content_);
  recover();
  EXPECT_EQ(catalogued("f"), 2u);
  EXPECT_EQ(catalogued("g"), 2u);
}

TEST_F(RecoveryReconcileTest, ANewDirectoryComesWithWhatIsInIt) {
  make_directory("d");
  (void)leave_cold("d/f", 2, content_);
  recover();
  const uint64_t d = catalogued("d");
  ASSERT_NE(d, 0u);
  EXPECT_EQ(test::id_in(tier().store->catalog(), d, "f"), 2u);
  EXPECT_EQ(copy_mark_of(open("d", O_RDONLY).get())->node_id, d);
}

// What was fsync'ed of a file that is being written.
TEST_F(RecoveryReconcileTest, TheOlderContentOfADirtyFileStaysOnTheDisk) {
  const uint64_t f = leave_dirty("f", 2, 3);
  leave_open(f, {.writer = true});
  commit_left(2, "f", content_);
  recover();
  EXPECT_EQ(state(f).tier, Tier::kDirty);
  EXPECT_EQ(state(f).node_id, 2u);
  EXPECT_FALSE(state(f).emptied);
  EXPECT_EQ(copy(f), content_);
  EXPECT_EQ(committed(2), content_);
  EXPECT_EQ(used_units(), 1u);
}

TEST_F(RecoveryReconcileTest, AnEmptiedFileGetsNoNewNameBeforeItsContent) {
  const uint64_t f = leave_dirty("f", 2, 6);
  ASSERT_EQ(::linkat(root(), "f", root(), "g", 0), 0);
  leave_open(f, {.writer = true});
  commit_left(2, "f", content_);
  recover();
  EXPECT_TRUE(state(f).emptied);
  EXPECT_EQ(copy(f), content_) << "until there is a newer one";
  EXPECT_EQ(catalogued("f"), 2u);
  EXPECT_EQ(catalogued("g"), 0u);
}

TEST_F(RecoveryReconcileTest, AnEmptiedFileUnderANewNameLosesItsOldContent) {
  const uint64_t f = leave_dirty("new", 2, 6);
  leave_open(f, {.writer = true});
  commit_left(2, "old", content_);
  recover();
  EXPECT_EQ(catalogued("old"), 0u);
  EXPECT_EQ(state(f).node_id, 0u);
  EXPECT_FALSE(copy(f));
  EXPECT_EQ(used_units(), 0u);
}

// It was renamed first, and the catalog did not hear of that.
TEST_F(RecoveryReconcileTest, AnEmptiedFileKeepsItsOldContentUnderTheNameThatItWasEmptiedAt) {
  const uint64_t f = leave_emptied("new", 2, "new");
  ASSERT_EQ(::linkat(root(), "new", root(), "later", 0), 0);
  commit_left(2, "old", content_);
  recover();
  EXPECT_EQ(catalogued("old"), 0u);
  EXPECT_EQ(catalogued("new"), 2u);
  EXPECT_EQ(catalogued("later"), 0u);
  EXPECT_TRUE(state(f).emptied);
  EXPECT_EQ(copy(f), content_);
  EXPECT_EQ(committed(2), content_);
  EXPECT_EQ(used_units(), 1u);
  ASSERT_TRUE(work_until([&] { return state(f).tier == Tier::kClean; }));
  EXPECT_EQ(catalogued("new"), 2u);
  EXPECT_EQ(catalogued("later"), 2u) << "with its new content";
}

TEST_F(RecoveryReconcileTest, AnEmptiedFileKeepsNothingUnderANameThatItGotLater) {
  const uint64_t f = leave_emptied("new", 2, "old");
  commit_left(2, "old", content_);
  recover();
  EXPECT_EQ(catalogued("new"), 0u);
  EXPECT_EQ(catalogued("old"), 0u);
  EXPECT_FALSE(copy(f));
}

// Two files were exchanged, then one of them was emptied, and the catalog heard of neither.
TEST_F(RecoveryReconcileTest, ExchangedFilesHaveTheirNewNamesAlone) {
  const auto other = content(kBlock, {{2, 1}}, 6);
  const uint64_t a = leave_emptied("b", 2, "b");
  const uint64_t b = leave_clean("a", 3, other);
  commit_left(2, "a", content_);
  commit_left(3, "b", other);
  recover();
  EXPECT_EQ(catalogued("a"), 3u);
  EXPECT_EQ(catalogued("b"), 2u);
  EXPECT_EQ(copy(a), content_);
  EXPECT_EQ(copy(b), other);
  ASSERT_TRUE(tree_->remove(root(), "a", false));
  EXPECT_EQ(catalogued("a"), 0u);
  EXPECT_EQ(catalogued("b"), 2u);
}

TEST_F(RecoveryReconcileTest, WhatAnUnspilledFileReplacedStaysOnTheDiskUnderItsName) {
  const uint64_t newer = leave("f");
  leave_open(newer, {.writer = true});
  commit_left(2, "f", content_);
  recover();
  EXPECT_EQ(catalogued("f"), 2u);
  EXPECT_EQ(used_units(), 1u);
  ASSERT_TRUE(tree_->remove(root(), "f", false));
  EXPECT_EQ(catalogued("f"), 0u) << "its name hides nothing any more";
}

TEST_F(RecoveryReconcileTest, AColdEntryWithoutACopyIsDiscarded) {
  const uint64_t f = leave_cold("f", 2, content(kBlock, {{kUnits, 1}}));
  const uint64_t g = leave_cold("g", 3, content_);
  recover();
  EXPECT_FALSE(is_there("f"));
  EXPECT_FALSE(state(f).exists);
  EXPECT_EQ(state(g).tier, Tier::kCold);
}

TEST_F(RecoveryReconcileTest, AHalfPromotedEntryIsCold) {
  const uint64_t f = leave_cold("f", 2, content_);
  write("f", "half");
  const struct stat before = status("f");
  recover();
  EXPECT_EQ(state(f).tier, Tier::kCold);
  EXPECT_EQ(status("f").st_blocks, 0);
  EXPECT_EQ(status("f").st_mtim.tv_nsec, before.st_mtim.tv_nsec);
}

TEST_F(RecoveryReconcileTest, AnEntryThatWasOpenedAfterItsPromotionIsClean) {
  const uint64_t f = leave_cold("f", 2, content_);
  write("f", std::string(kBlock, 'x'));
  leave_open(f);
  recover();
  EXPECT_EQ(state(f).tier, Tier::kClean);
  EXPECT_EQ(status("f").st_blocks, 8);
}

TEST_F(RecoveryReconcileTest, WhatIsReadFromTheDiskStaysThere) {
  const uint64_t f = leave_cold("f", 2, content_);
  leave_open(f, {.from_disk = true});
  commit_left(2, "f", content_);
  recover();
  EXPECT_TRUE(is_held(f));
  ASSERT_TRUE(tree_->remove(root(), "f", false));
  commit();
  EXPECT_EQ(used_units(), 1u) << "a reader has it";
  files_->end_open(f, {.from_disk = true});
  EXPECT_EQ(used_units(), 0u);
}

TEST_F(RecoveryReconcileTest, WhatIsReadOfANamelessFileStaysUntilItIsClosed) {
  const uint64_t f = leave_cold("f", 2, content_);
  leave_open(f, {.from_disk = true});
  (void)leave_kept(open("f", O_RDONLY));
  ASSERT_EQ(::unlinkat(root(), "f", 0), 0);
  recover();
  EXPECT_TRUE(is_held(f));
  EXPECT_EQ(used_units(), 1u);
  files_->end_open(f, {.from_disk = true});
  EXPECT_EQ(used_units(), 0u);
}

TEST_F(RecoveryReconcileTest, APinnedColdEntryIsPromoted) {
  const uint64_t f = leave_cold("f", 2, content_);
  ASSERT_TRUE(sys::set_xattr(open("f").get(), kPinnedXattr, "1", 0));
  recover();
  EXPECT_TRUE(state(f).pinned);
  EXPECT_EQ(tier().promoter.queued(), 1u);
}

TEST_F(RecoveryReconcileTest, AnUnfinishedRestoreIsFinished) {
  const auto other = content(kBlock, {{2, 1}});
  (void)leave_cold("f", 2, content_);
  ASSERT_TRUE(put_restoring(root(), 0));
  commit_left(2, "f", content_);
  commit_left({PutName{kCatalogRoot, "link", 2}});
  commit_left(3, "g", other);
  recover();
  ASSERT_TRUE(is_there("g"));
  EXPECT_EQ(state(ino("g")).tier, Tier::kCold);
  EXPECT_EQ(copy(ino("g")), other);
  EXPECT_EQ(ino("link"), ino("f"));
  EXPECT_EQ(catalogued("g"), 3u);
  EXPECT_EQ(used_units(), 2u);
  EXPECT_FALSE(restoring_up_to(root()));
}

TEST_F(RecoveryReconcileTest, WhatIsDirtyIsSpilled) {
  const uint64_t f = leave("f");
  recover();
  ASSERT_TRUE(work_until([&] { return state(f).tier == Tier::kClean; }));
  EXPECT_EQ(catalogued("f"), state(f).node_id);
}

}  // namespace kvcachefs::recovery_reconcile_test
