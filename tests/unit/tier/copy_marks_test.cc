#include "tier/pool/copy_marks.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <vector>

#include "tests/support/pool_parts.h"
#include "tests/support/system_calls.h"

namespace kvcachefs::copy_marks_test {

using State = CopyMark::State;

class CopyMarksTest : public test::PoolPartsTest {
 protected:
  CopyMarksTest() : PoolPartsTest(Upto::kMarks) {}
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    supervise();
    ino_ = store("f");
    file_ = open("f", O_RDONLY);
  }
  Entry& it() { return entry(ino_); }
  std::optional<CopyMark> mark() const { return copy_mark_of(file_.get()); }
  State mark_state() const { return mark() ? mark()->state : State::kUnreadable; }
  bool is_numbered() { return marks_->is_numbered(it(), file_.get()); }
  Result<void> number() { return marks_->number(it(), file_.get()); }
  static CatalogContent content(uint64_t extents) {
    CatalogContent made{.size_bytes = 1, .checksum = {1, 2}, .version = 5, .extents = {}};
    for (uint64_t i = 0; i < extents; ++i) made.extents.push_back({2 * i + 1, 1});
    return made;
  }

  uint64_t ino_ = 0;
  UniqueFd file_;
};

// An xattr has 64 KiB.
constexpr uint64_t kTooManyExtents = 10'000;

TEST_F(CopyMarksTest, AMarkSaysWhatASuccessorHasToKnow) {
  set_node_id(ino_, 7);
  set_first_version(ino_, 3);
  const CatalogContent copy = content(2);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  ASSERT_TRUE(mark());
  EXPECT_EQ(mark()->state, State::kClean);
  EXPECT_EQ(mark()->node_id, 7u);
  EXPECT_EQ(mark()->content.extents, copy.extents);
  EXPECT_EQ(mark()->content.checksum, copy.checksum);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kNone, nullptr));
  EXPECT_EQ(mark()->state, State::kNone);
  EXPECT_EQ(mark()->node_id, 7u);
  EXPECT_EQ(mark()->first_version, 3u);
  EXPECT_FALSE(mark()->synced_nameless);
}

TEST_F(CopyMarksTest, UsersSeeNothingOfIt) {
  const struct stat before = status("f");
  const CatalogContent copy = content(1);
  await_later_ctime("f");
  EXPECT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  EXPECT_NE(status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  const struct stat shown = shown_status("f");
  EXPECT_EQ(shown.st_ctim.tv_sec, before.st_ctim.tv_sec);
  EXPECT_EQ(shown.st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  EXPECT_EQ(shown.st_mtim.tv_nsec, before.st_mtim.tv_nsec);
}

TEST_F(CopyMarksTest, WithoutASupervisorThereAreNone) {
  surroundings_.survivors = nullptr;
  const CatalogContent copy = content(1);
  EXPECT_TRUE(marks_->mark_copy(it(), file_.get(), State::kCold, &copy));
  EXPECT_TRUE(is_numbered());
  EXPECT_TRUE(number());
  entries_.contents().spilled(it());
  marks_->became_dirty(it(), file_.get());
  EXPECT_EQ(state(ino_).tier, Entry::Tier::kDirty);
  EXPECT_FALSE(mark());
}

TEST_F(CopyMarksTest, WhatMayBeWrittenNowIsMarkedAndDirty) {
  const CatalogContent copy = content(1);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  entries_.contents().spilled(it());
  const uint32_t epoch = state(ino_).epoch;
  marks_->became_dirty(it(), file_.get());
  EXPECT_EQ(mark_state(), State::kNone);
  EXPECT_EQ(state(ino_).tier, Entry::Tier::kDirty);
  EXPECT_NE(state(ino_).epoch, epoch) << "a copy that was begun before is void";
  EXPECT_TRUE(survivors_->children().may_succeed());
}

TEST_F(CopyMarksTest, ADirtyOneNeedsNoDescriptorToStayDirty) {
  const uint32_t epoch = state(ino_).epoch;
  marks_->became_dirty(it(), -1);
  EXPECT_NE(state(ino_).epoch, epoch);
  EXPECT_TRUE(survivors_->children().may_succeed());
}

// The process may be killed between the two.
TEST_F(CopyMarksTest, TheMarkIsWrittenBeforeTheTierChanges) {
  const CatalogContent copy = content(1);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  entries_.contents().spilled(it());
  const auto tiers = test::at_calls(
      {SYS_fsetxattr}, [&] { marks_->became_dirty(it(), file_.get()); },
      [&] { return static_cast<int>(it().tier); });
  EXPECT_EQ(tiers, std::vector<int>{static_cast<int>(Entry::Tier::kClean)});
}

TEST_F(CopyMarksTest, ACleanMarkThatCannotBeWrittenIsReplacedByOneThatClaimsNothing) {
  set_node_id(ino_, 7);
  CatalogContent copy = content(1);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  copy = content(kTooManyExtents);
  EXPECT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  EXPECT_EQ(mark_state(), State::kNone);
  EXPECT_EQ(mark()->node_id, 7u);
  EXPECT_TRUE(survivors_->children().may_succeed());
}

// The pages are still there, and what the mark says is still true.
TEST_F(CopyMarksTest, AColdMarkThatCannotBeWrittenLeavesTheOneBefore) {
  CatalogContent copy = content(1);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  copy = content(kTooManyExtents);
  EXPECT_FALSE(marks_->mark_copy(it(), file_.get(), State::kCold, &copy));
  EXPECT_EQ(mark_state(), State::kClean);
  EXPECT_TRUE(survivors_->children().may_succeed());
}

TEST_F(CopyMarksTest, WhereAMarkThatWouldLieStaysNoProcessTakesOver) {
  const CatalogContent copy = content(1);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  entries_.contents().spilled(it());
  const test::NoMarks unprivileged;
  EXPECT_FALSE(marks_->mark_copy(it(), file_.get(), State::kCold, &copy));
  EXPECT_TRUE(survivors_->children().may_succeed()) << "no pages have gone";
  marks_->became_dirty(it(), file_.get());
  EXPECT_FALSE(survivors_->children().may_succeed());
  EXPECT_EQ(state(ino_).tier, Entry::Tier::kDirty);
}

TEST_F(CopyMarksTest, ANumberIsGivenOnce) {
  attach_disk();
  EXPECT_FALSE(is_numbered());
  ASSERT_TRUE(number());
  EXPECT_TRUE(is_numbered());
  const uint64_t given = mark()->node_id;
  EXPECT_NE(given, 0u);
  EXPECT_EQ(state(ino_).node_id, 0u) << "the catalog does not have it yet";
  ASSERT_TRUE(number());
  EXPECT_EQ(mark()->node_id, given);
  EXPECT_NE(tier().store->new_id(), given);
}

TEST_F(CopyMarksTest, TheCatalogsNumberIsTheMarks) {
  attach_disk();
  ASSERT_TRUE(number());
  set_node_id(ino_, mark()->node_id);
  EXPECT_TRUE(is_numbered());
  set_node_id(ino_, mark()->node_id + 1);
  EXPECT_FALSE(is_numbered());
  ASSERT_TRUE(number());
  EXPECT_EQ(mark()->node_id, state(ino_).node_id);
}

// A successor has to know that contents of earlier versions are older than the truncation.
TEST_F(CopyMarksTest, ATruncationMakesTheMarkOutOfDateAndKeepsItsNumber) {
  attach_disk();
  ASSERT_TRUE(number());
  const uint64_t given = mark()->node_id;
  set_first_version(ino_, 4);
  EXPECT_FALSE(is_numbered());
  ASSERT_TRUE(number());
  EXPECT_TRUE(is_numbered());
  EXPECT_EQ(mark()->node_id, given);
  EXPECT_EQ(mark()->first_version, 4u);
}

// The catalog may show its old content at that name, and at no other.
TEST_F(CopyMarksTest, ATruncationToNothingMarksTheNameThatTheFileHas) {
  attach_disk();
  set_node_id(ino_, 7);
  const CatalogContent copy = content(1);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  (void)it().disk.put_copy(copy);
  entries_.contents().spilled(it());
  marks_->cut(it(), file_.get(), true);
  EXPECT_EQ(state(ino_).tier, Entry::Tier::kDirty);
  EXPECT_TRUE(state(ino_).emptied);
  EXPECT_EQ(mark()->first_version, state(ino_).first_version);
  const uint64_t at_f = place_hash(arena_->tree().ino, "f");
  EXPECT_EQ(mark()->emptied_as, at_f);
  marks_->cut(it(), file_.get(), true);
  EXPECT_EQ(mark()->emptied_as, at_f);
  ASSERT_TRUE(::renameat(root(), "f", root(), "g") == 0);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kNone, nullptr));
  EXPECT_EQ(mark()->emptied_as, at_f) << "the name at the truncation";
  marks_->cut(it(), file_.get(), true);
  EXPECT_EQ(mark()->emptied_as, 0u) << "the content may be from before the first or the second";
}

TEST_F(CopyMarksTest, ATruncationToNothingOfWhatTheCatalogLacksMarksNoName) {
  attach_disk();
  ASSERT_TRUE(number());
  marks_->cut(it(), file_.get(), true);
  EXPECT_EQ(mark()->emptied_as, 0u);
  EXPECT_TRUE(is_numbered());
}

TEST_F(CopyMarksTest, ANamelessOneThatIsSyncedIsMarkedAnew) {
  attach_disk();
  ASSERT_TRUE(number());
  set_synced_nameless(ino_);
  ASSERT_TRUE(number());
  EXPECT_TRUE(mark()->synced_nameless);
}

TEST_F(CopyMarksTest, AMarkOfACopyIsNoNumberOfADirtyOne) {
  attach_disk();
  set_node_id(ino_, 7);
  const CatalogContent copy = content(1);
  ASSERT_TRUE(marks_->mark_copy(it(), file_.get(), State::kClean, &copy));
  EXPECT_FALSE(is_numbered());
}

TEST_F(CopyMarksTest, NumbersAreGivenAtOpensWhereACloseIsDurableAndWritesPassTheDaemon) {
  EXPECT_FALSE(marks_->numbers_at_open());
  (void)disk_->exchange_durability(Durability::kSync);
  EXPECT_FALSE(marks_->numbers_at_open()) << "no disk";
  attach_disk(Durability::kWriteback);
  EXPECT_FALSE(marks_->numbers_at_open());
  (void)disk_->exchange_durability(Durability::kSync);
  EXPECT_TRUE(marks_->numbers_at_open());
  backing_.daemon_io = true;
  EXPECT_FALSE(marks_->numbers_at_open());
}

}  // namespace kvcachefs::copy_marks_test
