// What is found again of a pool's files after the death of the process that served them.
#include <gmock/gmock.h>
#include <sys/xattr.h>

#include <cerrno>
#include <csignal>

#include "tests/support/recovery_test.h"

namespace kvcachefs::recovery_adopt_test {

using test::code_of;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Stage = Entry::Stage;
using Tier = Entry::Tier;

class RecoveryAdoptTest : public test::RecoveryTest {
 protected:
  void set_times(const std::string& name, time_t accessed_s, time_t modified_s) const {
    const timespec times[] = {{accessed_s, 0}, {modified_s, 0}};
    ASSERT_EQ(::utimensat(root(), name.c_str(), times, 0), 0);
  }
  bool is_open(int fd) const { return ::fcntl(fd, F_GETFD) >= 0; }
};

TEST_F(RecoveryAdoptTest, ClosedFilesAreCandidatesInTheOrderOfTheirLastUse) {
  const uint64_t f = leave("f"), g = leave("g", std::string(kBlock + 1, 'g'));
  make_directory("d");
  const uint64_t h = leave("d/h", "");
  set_times("f", 2000, 1000);
  set_times("g", 1000, 1500);
  set_times("d/h", 1000, 1000);
  EXPECT_THAT(adopt(), IsEmpty());
  EXPECT_EQ(entries_.sums().files(), 3u);
  EXPECT_EQ(state(g).stage, Stage::kCandidate);
  EXPECT_EQ(state(g).tier, Tier::kDirty);
  EXPECT_EQ(state(g).charged_bytes, 2 * kBlock);
  EXPECT_EQ(entries_.sums().evictable_bytes(), 3 * kBlock);
  for (const uint64_t victim : {h, g, f}) EXPECT_EQ(entries_.candidates().next_victim(false)->ino, victim);
  EXPECT_EQ(capacity_->expected_entry_bytes(), kBlock) << "learned from them";
}

// Before Linux 6.16 it would believe for a year what the process that died has told it.
TEST_F(RecoveryAdoptTest, TheKernelIsToldOfWhatItMayKnow) {
  const uint64_t f = leave("f");
  adopt();
  EXPECT_EQ(tree_->remove_names(entry(f), open("f", O_RDONLY).get()), Tree::NamesLeft::kNone);
  ASSERT_EQ(heard_.gone.size(), 1u);
  EXPECT_EQ(heard_.gone[0].name, "f");
}

TEST_F(RecoveryAdoptTest, TheSecondNameOfAFileIsNoSecondEntry) {
  const uint64_t f = leave("f");
  ASSERT_EQ(::linkat(root(), "f", root(), "g", 0), 0);
  adopt();
  EXPECT_EQ(entries_.sums().files(), 1u);
  EXPECT_EQ(state(f).stage, Stage::kCandidate);
}

TEST_F(RecoveryAdoptTest, OpenFilesAreAsOpenAsTheirHandlesSay) {
  const uint64_t f = leave("f"), g = leave("g"), h = leave("h");
  leave_open(f);
  leave_open(f, {.writer = true});
  leave_open(g);
  leave_open(h, {}, kPool + 1);
  set_times("g", 1000, 1000);
  adopt();
  EXPECT_EQ(state(f).opens, 2u);
  EXPECT_EQ(state(f).writers, 1u);
  EXPECT_EQ(state(f).stage, Stage::kWritten);
  EXPECT_EQ(state(g).opens, 1u);
  EXPECT_EQ(state(g).writers, 0u);
  EXPECT_EQ(state(h).opens, 0u) << "another pool's handle";
  EXPECT_EQ(entries_.sums().open_files(), 2u);
  EXPECT_EQ(capacity_->writers().next_to_see(0), std::vector{f});
  EXPECT_EQ(entries_.candidates().next_victim(false)->ino, g) << "which the evictor then finds in use";
  EXPECT_EQ(entries_.candidates().next_victim(false)->ino, h);
  EXPECT_FALSE(entries_.candidates().next_victim(false)) << "what is written is no candidate";
  EXPECT_EQ(backing_.held.size(), 2u) << "what is open rests on something";
}

TEST_F(RecoveryAdoptTest, BackingIdsGoToTheirFilesOrBack) {
  const uint64_t f = leave("f");
  leave_open(f);
  const auto held = backing_.acquire(open("f").get(), {kPool, f});
  const uint64_t gone_ino = leave("gone");
  const auto gone = backing_.acquire(open("gone").get(), {kPool, gone_ino});
  ASSERT_EQ(::unlinkat(root(), "gone", 0), 0);
  ASSERT_TRUE(survivors_->backing_ids().held({{kPool, f}, *held}));
  ASSERT_TRUE(survivors_->backing_ids().held({{kPool, gone_ino}, *gone}));
  adopt();
  EXPECT_EQ(entry(f).kernel.backing, *held);
  EXPECT_EQ(backing_.held.size(), 1u) << "that of the file that is gone was given back";
}

TEST_F(RecoveryAdoptTest, ANamelessFileStaysWhileItIsOpen) {
  const UniqueFd file = open(".", O_TMPFILE | O_RDWR), other = open(".", O_TMPFILE | O_RDWR);
  const uint64_t f = sys::handle_of(file.get())->ino, unopened = sys::handle_of(other.get())->ino;
  leave_open(f, {.writer = true});
  const int kept = leave_kept(file), not_kept = leave_kept(other);
  EXPECT_THAT(adopt(), IsEmpty());
  EXPECT_TRUE(state(f).removed);
  EXPECT_EQ(state(f).writers, 1u);
  EXPECT_TRUE(is_kept(f));
  EXPECT_TRUE(is_open(kept));
  EXPECT_FALSE(state(unopened).exists);
  EXPECT_FALSE(is_open(not_kept));
  EXPECT_EQ(survivors_->kept_inodes().list().size(), 1u);
  EXPECT_EQ(entries_.sums().files(), 0u);
}

TEST_F(RecoveryAdoptTest, WhatGotANameAgainIsNotKept) {
  const uint64_t f = leave("f");
  leave_open(f);
  const int not_kept = leave_kept(open("f"));
  adopt();
  EXPECT_FALSE(state(f).removed);
  EXPECT_FALSE(is_kept(f));
  EXPECT_FALSE(is_open(not_kept));
}

TEST_F(RecoveryAdoptTest, TheKernelIsAskedForNamelessDirectories) {
  make_directory("d");
  const UniqueFd directory = open("d", O_RDONLY | O_DIRECTORY);
  const uint64_t d = ino("d");
  (void)leave_kept(directory);
  ASSERT_EQ(::unlinkat(root(), "d", AT_REMOVEDIR), 0);
  EXPECT_THAT(adopt(), ElementsAre(d));
  EXPECT_TRUE(is_kept(d));
  EXPECT_EQ(state(d).lookups, 1u);
}

TEST_F(RecoveryAdoptTest, TheKernelMayKnowEveryDirectory) {
  make_directory("d");
  adopt();
  EXPECT_EQ(state(ino("d")).lookups, 1u);
  EXPECT_TRUE(state(ino("d")).missed_in);
  EXPECT_TRUE(inodes_->root_is_known());
  inodes_->forget(ino("d"), UINT64_MAX);
  EXPECT_EQ(state(ino("d")).lookups, 1u) << "it may have been looked up since";
  EXPECT_EQ(tree_->empty_directories()->counts().resting, 1u);
}

TEST_F(RecoveryAdoptTest, TheMarkSaysThatTheContentIsOnTheDiskAlone) {
  const auto its = content(10'000, {{1, 2}});
  const uint64_t cold = leave_cold("cold", 5, its), clean = leave_clean("clean", 6, its);
  const uint64_t none = leave_dirty("none", 7, 4);
  adopt();
  EXPECT_EQ(state(cold).tier, Tier::kCold);
  EXPECT_EQ(state(cold).charged_bytes, 3 * kBlock) << "what it would take";
  EXPECT_EQ(state(clean).tier, Tier::kDirty) << "until its disk is there";
  EXPECT_EQ(state(none).first_version, 4u);
}

TEST_F(RecoveryAdoptTest, AFileWithoutPagesAndWithADamagedMarkIsNoContent) {
  const uint64_t f = leave("f"), cold = leave_cold("cold", 5, content(10'000, {{1, 2}}));
  for (const char* name : {"f", "cold"}) ASSERT_EQ(::fsetxattr(open(name).get(), kCopyXattr, "m", 1, 0), 0);
  adopt();
  EXPECT_EQ(state(f).tier, Tier::kDirty);
  EXPECT_EQ(state(cold).tier, Tier::kCold);
}

TEST_F(RecoveryAdoptTest, AColdEntryThatIsOpenOtherwiseThanFromTheDiskHasItsPages) {
  const auto its = content(kBlock, {{1, 1}});
  const uint64_t f = leave_cold("f", 5, its), g = leave_cold("g", 6, its);
  leave_open(f);
  leave_open(g, {.from_disk = true});
  adopt();
  EXPECT_EQ(state(f).tier, Tier::kDirty);
  EXPECT_EQ(state(g).tier, Tier::kCold);
  EXPECT_EQ(state(g).opens_from_disk, 1u);
  EXPECT_EQ(entry(g).kernel.backing, -1);
}

// The process died between the cut and the mark.
TEST_F(RecoveryAdoptTest, AColdFileThatWasCutIsDirtyAndItsMarkSaysSo) {
  const uint64_t f = leave_cold("f", 5, content(kBlock, {{1, 1}}, 7));
  ASSERT_TRUE(sys::truncate(open("f").get(), 0));
  adopt();
  EXPECT_EQ(state(f).tier, Tier::kDirty);
  const auto now = copy_mark_of(open("f", O_PATH).get());
  ASSERT_TRUE(now);
  EXPECT_EQ(now->state, CopyMark::State::kNone);
  EXPECT_EQ(now->node_id, 5u);
  EXPECT_EQ(now->first_version, 8u) << "the disk has what is older";
}

TEST_F(RecoveryAdoptTest, PinsAndPrioritiesAreOnTheFiles) {
  const uint64_t f = leave("f"), g = leave("g");
  ASSERT_EQ(::fsetxattr(open("f").get(), kPinnedXattr, "1", 1, 0), 0);
  ASSERT_EQ(::fsetxattr(open("g").get(), "user.kv.priority", "-3", 2, 0), 0);
  adopt();
  EXPECT_TRUE(state(f).pinned);
  EXPECT_EQ(entries_.sums().pinned_bytes(), kBlock);
  EXPECT_EQ(entry(g).policy.priority, -3);
  EXPECT_EQ(entries_.candidates().next_victim(false)->ino, g);
  EXPECT_FALSE(entries_.candidates().next_victim(false));
}

TEST_F(RecoveryAdoptTest, WhatWasReservedIsGivenBackOnceNobodyWrites) {
  const uint64_t closed = leave("closed"), written = leave("written");
  for (const char* name : {"closed", "written"})
    ASSERT_TRUE(sys::allocate(open(name).get(), 1 /* FALLOC_FL_KEEP_SIZE */, 0, 4 * kBlock));
  leave_open(written, {.writer = true});
  adopt();
  EXPECT_EQ(status("closed").st_blocks, 8);
  EXPECT_EQ(state(closed).charged_bytes, kBlock);
  EXPECT_EQ(state(closed).reserved_end, 0u);
  EXPECT_EQ(status("written").st_blocks, 32);
  EXPECT_GT(state(written).reserved_end, kBlock);
}

TEST_F(RecoveryAdoptTest, TheTimesThatUsersSeeOutliveTheProcess) {
  const uint64_t f = leave("f");
  const struct stat before = status("f");
  await_later_ctime("f");
  KeptCtime kept;
  keep_ctime(kept, open("f").get(), true);
  ASSERT_NE(status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  adopt();
  EXPECT_EQ(shown_status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  EXPECT_EQ(entry(f).kept.ctime_ns, kept.ctime_ns);
}

TEST_F(RecoveryAdoptTest, AFileThatCannotBeLookedAtIsNoFileThatIsGone) {
  ::signal(SIGIO, SIG_IGN);  // the lease's holder is told of the open
  (void)leave("f");
  const UniqueFd leased = open("f", O_RDONLY);
  ASSERT_TRUE(sys::set_lease(leased.get(), F_WRLCK)) << "no open without waiting";
  ASSERT_TRUE(recovery_->begin_adopting());
  const auto refused = recovery_->adopt();
  EXPECT_EQ(code_of(refused), EIO);
}

}  // namespace kvcachefs::recovery_adopt_test
