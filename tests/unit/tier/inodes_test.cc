#include "tier/pool/inodes.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <csignal>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::inodes_test {

using test::code_of;

constexpr timespec kOmitted{.tv_sec = 0, .tv_nsec = UTIME_OMIT};
constexpr timespec kNow{.tv_sec = 0, .tv_nsec = UTIME_NOW};

class InodesTest : public test::PoolPartsTest {
 protected:
  InodesTest() : PoolPartsTest(Upto::kInodes) {}
  Result<LookedUp> look_up(const std::string& name, bool sought = false) {
    return inodes_->look_up(handle(name), root(), name.c_str(), sought);
  }
  // As a client's unlink of a file that is open, or an O_TMPFILE: the inode stays without a name.
  void remove_name(const std::string& name) {
    const uint64_t its = ino(name);
    UniqueFd file = open(name, O_PATH);
    ASSERT_EQ(::unlinkat(root(), name.c_str(), 0), 0);
    EntryTable::Shard& its_shard = shard(its);
    MutexLock lock(its_shard.mutex);
    entries_.removed(*its_shard.find(its), RemovalReason::kDeleted);
    its_shard.kept[its] = KeptByDescriptor(std::move(file), nullptr, 0, {});
  }
  // A promotion of the file is under way, which changes its times.
  void begin_promotion(uint64_t its, const KeptTimes& times) {
    entry(its).disk.move = DiskFacts::Move::kPromoting;
    entry(its).disk.with_copies().times = std::make_unique<KeptTimes>(times);
  }
  KeptTimes kept_times(uint64_t its) { return *entry(its).disk.times(); }
  uint64_t blocks(uint64_t its) { return static_cast<uint64_t>(inodes_->attributes(its)->st_blocks) * 512; }
};

TEST_F(InodesTest, EachLookupIsCounted) {
  const uint64_t f = store("f");
  const auto first = look_up("f");
  ASSERT_TRUE(first);
  EXPECT_EQ(first->attributes.st_ino, f);
  EXPECT_FALSE(first->being_written);
  struct stat attributes = status("f");
  ASSERT_TRUE(inodes_->looked_up(handle("f"), attributes));
  EXPECT_EQ(state(f).lookups, 2u);
  open_entry(f, {.writer = true});
  EXPECT_TRUE(look_up("f")->being_written);
}

TEST_F(InodesTest, AFileWithoutAnEntryHasJustBeenDiscarded) {
  (void)make("f");
  EXPECT_EQ(code_of(look_up("f")), ESTALE);
  const uint64_t g = store("g");
  const sys::Handle handle_of_g = handle("g");
  remove_name("g");
  struct stat attributes {};
  attributes.st_mode = S_IFREG;
  EXPECT_EQ(code_of(inodes_->looked_up(handle_of_g, attributes)), ESTALE);
  EXPECT_EQ(state(g).lookups, 0u);
}

TEST_F(InodesTest, ANameThatHasGoneToAnotherFileIsLookedUpAgain) {
  const uint64_t f = store("f");
  const uint64_t g = store("g");
  EXPECT_EQ(code_of(inodes_->look_up(handle("f"), root(), "g")), ESTALE);
  EXPECT_EQ(code_of(inodes_->look_up(handle("f"), root(), "none")), ENOENT);
  EXPECT_EQ(state(f).lookups + state(g).lookups, 0u);
}

TEST_F(InodesTest, ADirectoryHasAnEntryWhileTheKernelKnowsIt) {
  make_directory("d");
  const uint64_t d = ino("d");
  EXPECT_FALSE(state(d).exists);
  ASSERT_TRUE(look_up("d"));
  ASSERT_TRUE(look_up("d"));
  EXPECT_EQ(inodes_->generation_of(d), handle("d").generation);
  inodes_->forget(d, 1);
  EXPECT_EQ(state(d).lookups, 1u);
  inodes_->forget(d, 1);
  EXPECT_FALSE(state(d).exists);
  EXPECT_EQ(inodes_->generation_of(d), 0u);
  inodes_->forget(d, 1);
}

TEST_F(InodesTest, ADirectoryThatHasLeftMeanwhileIsGone) {
  make_directory("d");
  const sys::Handle d = handle("d");
  struct stat attributes = status("d");
  const UniqueFd holder = open("d", O_PATH);
  ASSERT_EQ(::unlinkat(root(), "d", AT_REMOVEDIR), 0);
  EXPECT_EQ(code_of(inodes_->looked_up(d, attributes)), ESTALE);
  EXPECT_FALSE(state(d.ino).exists);
}

TEST_F(InodesTest, TheRootHasAnEntryAsAnyDirectory) {
  EXPECT_FALSE(inodes_->root_is_known());
  struct stat attributes {};
  ASSERT_EQ(::fstat(root(), &attributes), 0);
  ASSERT_TRUE(inodes_->looked_up(arena_->tree(), attributes));
  EXPECT_TRUE(inodes_->root_is_known());
  inodes_->forget(arena_->tree().ino, 1);
  EXPECT_FALSE(inodes_->root_is_known());
}

TEST_F(InodesTest, AForgottenFileStaysAsLongAsItHasANameOrIsOpen) {
  const uint64_t f = store("f");
  ASSERT_TRUE(look_up("f", true));
  inodes_->forget(f, 10);
  EXPECT_TRUE(state(f).exists) << "it has a name";
  EXPECT_EQ(state(f).lookups, 0u);
  ASSERT_TRUE(look_up("f"));
  remove_name("f");
  open_entry(f);
  inodes_->forget(f, 1);
  EXPECT_TRUE(state(f).exists) << "it is open";
  close_entry(f);
  set_lookups(f, 1);
  inodes_->forget(f, 1);
  EXPECT_FALSE(state(f).exists);
  EXPECT_FALSE(is_kept(f));
}

TEST_F(InodesTest, WhatAnOpenHasSoughtIsNoLongerSoughtOnceForgotten) {
  const uint64_t f = store("f");
  ASSERT_TRUE(look_up("f", true));
  ASSERT_TRUE(look_up("f", false));
  EXPECT_TRUE(state(f).sought);
  inodes_->forget(f, 1);
  EXPECT_TRUE(state(f).sought);
  inodes_->forget(f, 1);
  EXPECT_FALSE(state(f).sought);
}

// How often the kernel was told of it, only the process before this one knew.
TEST_F(InodesTest, AnAdoptedInodeIsForgottenOnceItHasNoName) {
  const uint64_t d = make_known_directory("d");
  set_adopted(d);
  inodes_->forget(d, 100);
  EXPECT_EQ(state(d).lookups, 1u);
  {
    EntryTable::Shard& its_shard = shard(d);
    MutexLock lock(its_shard.mutex);
    entries_.removed(*its_shard.find(d), RemovalReason::kDeleted);
  }
  inodes_->forget(d, 1);
  EXPECT_FALSE(state(d).exists);
}

TEST_F(InodesTest, ALookupThatFindsNothingIsRemembered) {
  const uint64_t d = make_known_directory("d");
  inodes_->looked_for_nothing(d);
  inodes_->looked_for_nothing(d + 1);
  EXPECT_TRUE(state(d).missed_in);
  EXPECT_FALSE(state(d + 1).exists);
  EXPECT_EQ(counters_.lookups_missed, 2u);
}

TEST_F(InodesTest, WhatIsGoneIsStale) {
  constexpr uint64_t kGone = 4711;
  EXPECT_EQ(code_of(inodes_->attributes(kGone)), ESTALE);
  EXPECT_EQ(code_of(inodes_->open_inode(kGone, O_RDONLY)), ESTALE);
  EXPECT_EQ(code_of(inodes_->directory(kGone)), ESTALE);
  EXPECT_EQ(code_of(inodes_->set_times(kGone, {kNow, kNow})), ESTALE);
  EXPECT_FALSE(inodes_->may_be_written(kGone));
  inodes_->change_mode_unless_written(kGone, 0600);
}

TEST_F(InodesTest, ADirectoryToWorkIn) {
  EXPECT_EQ(inodes_->directory(arena_->tree().ino)->fd, root());
  const uint64_t d = make_known_directory("d");
  const auto directory = inodes_->directory(d);
  ASSERT_TRUE(directory);
  EXPECT_EQ(directory->fd, directory->owned.get());
  (void)UniqueFd(::openat(directory->fd, "f", O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  EXPECT_TRUE(is_there("d/f"));
  EXPECT_EQ(code_of(inodes_->directory(store("g"))), ENOTDIR);
}

// The lease is a discard's, in this process: the open must not wait for it.
TEST_F(InodesTest, AnInodeThatIsJustBeingDiscardedIsGone) {
  const auto before = std::signal(SIGIO, SIG_IGN);
  const uint64_t f = store("f");
  const UniqueFd discarding = open("f", O_RDONLY);
  ASSERT_TRUE(sys::set_lease(discarding.get(), F_WRLCK));
  EXPECT_EQ(code_of(inodes_->open_inode(f, O_RDONLY)), ESTALE);
  EXPECT_TRUE(inodes_->open_inode(f, O_PATH));
  ASSERT_TRUE(sys::set_lease(discarding.get(), F_UNLCK));
  EXPECT_TRUE(inodes_->open_inode(f, O_RDONLY));
  std::signal(SIGIO, before);
}

TEST_F(InodesTest, UsersSeeNoBlocksThatAreReservedBeyondTheEnd) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = create("f");
  set_wants_reservation(f);
  reservations_->begin_writing(f);
  EXPECT_EQ(blocks(f), 0u);
  write("f", std::string(kBlock + 1, 'x'));
  EXPECT_EQ(blocks(f), 2 * kBlock);
  EXPECT_EQ(static_cast<uint64_t>(status("f").st_blocks) * 512, kMiB) << "they are there";
}

// The kernel may tell of the close before it lets go of the file.
TEST_F(InodesTest, AClientThatHasClosedItsFileSeesItsHoles) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = create("f");
  set_wants_reservation(f);
  reservations_->begin_writing(f);
  write("f", "x", kMiB - 1);
  EXPECT_EQ(blocks(f), kMiB);
  set_flushed(f);
  EXPECT_LT(blocks(f), kMiB);
  EXPECT_GT(state(f).reserved_end, 0u) << "its last close is to come";
}

TEST_F(InodesTest, TimesAreSet) {
  const uint64_t f = store("f");
  ASSERT_TRUE(inodes_->set_times(f, {timespec{11, 0}, timespec{22, 0}}));
  ASSERT_TRUE(inodes_->set_times(f, {kOmitted, timespec{33, 0}}));
  const auto attributes = inodes_->attributes(f);
  EXPECT_EQ(attributes->st_atim.tv_sec, 11);
  EXPECT_EQ(attributes->st_mtim.tv_sec, 33);
  ASSERT_TRUE(inodes_->set_times(arena_->tree().ino, {timespec{44, 0}, kOmitted}));
  EXPECT_EQ(inodes_->attributes(arena_->tree().ino)->st_atim.tv_sec, 44);
}

TEST_F(InodesTest, DuringAPromotionUsersSeeAndSetTheTimesOfBefore) {
  const uint64_t f = store("f");
  begin_promotion(f, {.accessed = {11, 0}, .modified = {22, 0}, .changed = {33, 0}});
  auto attributes = inodes_->attributes(f);
  EXPECT_EQ(attributes->st_atim.tv_sec, 11);
  EXPECT_EQ(attributes->st_mtim.tv_sec, 22);
  EXPECT_EQ(attributes->st_ctim.tv_sec, 33);
  ASSERT_TRUE(inodes_->set_times(f, {kOmitted, timespec{44, 0}}));
  write("f", "x");
  attributes = inodes_->attributes(f);
  EXPECT_EQ(attributes->st_atim.tv_sec, 11);
  EXPECT_EQ(attributes->st_mtim.tv_sec, 44) << "also after the promotion has written again";
  EXPECT_GT(attributes->st_ctim.tv_sec, 33) << "to set times is a change";
}

TEST_F(InodesTest, AKeptCtimeEndsWithAChangeByUsers) {
  const uint64_t f = store("f");
  const struct stat before = status("f");
  keep_ctime_of(f);
  await_later_ctime("f");
  ASSERT_EQ(::fchmodat(root(), "f", 0640, 0), 0);
  EXPECT_EQ(inodes_->attributes(f)->st_ctim.tv_nsec, before.st_ctim.tv_nsec) << "the daemon's own change";
  {
    EntryTable::Shard& its_shard = shard(f);
    MutexLock lock(its_shard.mutex);
    inodes_->touched(*its_shard.find(f));
  }
  EXPECT_NE(inodes_->attributes(f)->st_ctim.tv_nsec, before.st_ctim.tv_nsec);
}

TEST_F(InodesTest, DuringAPromotionAChangeByUsersMovesTheCtimeAlone) {
  const uint64_t f = store("f");
  begin_promotion(f, {.accessed = {11, 0}, .modified = {22, 0}, .changed = {33, 0}});
  ASSERT_EQ(::fchmodat(root(), "f", 0640, 0), 0);
  {
    EntryTable::Shard& its_shard = shard(f);
    MutexLock lock(its_shard.mutex);
    inodes_->touched(*its_shard.find(f));
  }
  EXPECT_EQ(kept_times(f).modified.tv_sec, 22);
  EXPECT_EQ(kept_times(f).changed.tv_sec, status("f").st_ctim.tv_sec);
}

TEST_F(InodesTest, AModeIsNotChangedBesideAWriter) {
  const uint64_t f = create("f");
  inodes_->change_mode_unless_written(f, 0640);
  EXPECT_EQ(status("f").st_mode & 07777, 0600u);
  close_entry(f, {.writer = true});
  inodes_->change_mode_unless_written(f, 0640);
  EXPECT_EQ(status("f").st_mode & 07777, 0640u);
}

TEST_F(InodesTest, AFileMayBeWrittenByAnOpenOrAMapping) {
  const uint64_t f = store("f");
  EXPECT_FALSE(inodes_->may_be_written(f));
  EXPECT_FALSE(inodes_->may_be_written(make_known_directory("d")));
  {
    const test::Mapping mapping(open("f").get(), kBlock, PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    EXPECT_TRUE(inodes_->may_be_written(f)) << "which outlives the open";
    backing_.daemon_io = true;
    EXPECT_FALSE(inodes_->may_be_written(f)) << "there a mapping keeps its file open";
    backing_.daemon_io = false;
    entries_.contents().spilled(entry(f));
    EXPECT_FALSE(inodes_->may_be_written(f)) << "its copy proves that no process could";
    entries_.contents().dirtied(entry(f));
  }
  EXPECT_FALSE(inodes_->may_be_written(f));
  open_entry(f, {.writer = true});
  EXPECT_TRUE(inodes_->may_be_written(f));
}

}  // namespace kvcachefs::inodes_test
