#include "tier/pool/open_files.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::open_files_test {

using test::code_of;

constexpr OpenMode kReader{};
constexpr OpenMode kWriter{.writer = true};
constexpr OpenMode kFromDisk{.from_disk = true};
constexpr uint64_t kNoClient = 0;

class OpenFilesTest : public test::PoolPartsTest {
 protected:
  OpenFilesTest() : PoolPartsTest(Upto::kFiles) {}
  static constexpr bool kOpen = true, kNamed = true;
  Result<Opened> created(int fd, const char* name, OpenMode mode, bool open = kOpen, bool named = kNamed) {
    const auto its = sys::handle_of(fd);
    EXPECT_TRUE(its);
    return files_->created({.fd = fd,
                            .ino = its->ino,
                            .generation = its->generation,
                            .open = open,
                            .writer = mode.writer,
                            .named = named,
                            .name = name,
                            .node = 0});
  }
  // A client makes the file and has it open, but for a descriptor of its own.
  uint64_t make_open(const std::string& name, OpenMode mode = kWriter) {
    EXPECT_TRUE(created(make(name).get(), name.c_str(), mode)) << name;
    return ino(name);
  }
  Presence open(uint64_t its, OpenMode mode = kReader, uint64_t client = kNoClient) {
    const auto answer = files_->begin_open(its, mode, client);
    EXPECT_TRUE(answer);
    return answer ? answer->presence : Presence::kAway;
  }
  using ArenaTest::open;
  Opened opened(uint64_t its, OpenMode mode = kReader) {
    const auto answer = files_->begin_open(its, mode, kNoClient);
    EXPECT_TRUE(answer && answer->presence == Presence::kHere);
    return answer ? answer->opened : Opened{};
  }
  void close(uint64_t its, OpenMode mode = kReader) { files_->end_open(its, mode); }
  void unlink(const std::string& name) { ASSERT_TRUE(tree_->remove(root(), name.c_str(), false)); }
};

TEST_F(OpenFilesTest, AFileThatIsMadeIsStoredByItsLastWritersClose) {
  const uint64_t f = make_open("f");
  EXPECT_EQ(state(f).lookups, 1u);
  EXPECT_EQ(state(f).opens, 1u);
  EXPECT_EQ(state(f).writers, 1u);
  EXPECT_EQ(counters_.creates, 1u);
  EXPECT_EQ(entries_.sums().files(), 1u);
  ASSERT_EQ(backing_.held.size(), 1u);
  EXPECT_EQ(backing_.held.begin()->second.second, f);
  write("f", std::string(100, 'x'));
  EXPECT_EQ(open(f, kWriter), Presence::kHere);
  close(f, kWriter);
  EXPECT_EQ(state(f).stage, Entry::Stage::kWritten);
  close(f, kWriter);
  EXPECT_EQ(state(f).stage, Entry::Stage::kFresh);
  EXPECT_EQ(state(f).charged_bytes, kBlock);
  EXPECT_EQ(state(f).version, 1u);
  EXPECT_TRUE(backing_.held.empty());
  EXPECT_EQ(capacity_->writers().count(), 0u);
}

TEST_F(OpenFilesTest, AFileThatIsNotWrittenIsStoredToo) {
  const uint64_t f = make_open("f", kReader);
  close(f);
  EXPECT_EQ(state(f).stage, Entry::Stage::kFresh);
  EXPECT_TRUE(created(make("node").get(), "node", kReader, !kOpen));
  EXPECT_EQ(state(ino("node")).stage, Entry::Stage::kFresh) << "mknod";
  EXPECT_EQ(state(ino("node")).opens, 0u);
  EXPECT_TRUE(backing_.held.empty());
}

TEST_F(OpenFilesTest, AFileThatCannotBeOpenedLeavesNoEntry) {
  supervise();
  attach_disk(Durability::kSync);
  backing_.error = ENFILE;
  EXPECT_EQ(code_of(created(make("f").get(), "f", kWriter)), ENFILE);
  EXPECT_FALSE(state(ino("f")).exists);
  backing_.error = 0;
  {
    const test::NoMarks unprivileged;
    EXPECT_EQ(code_of(created(open("f").get(), "f", kWriter)), EPERM) << "its close could not be durable";
  }
  EXPECT_FALSE(state(ino("f")).exists);
  survivors_->descriptors().limit(0);
  const UniqueFd nameless = open(".", O_TMPFILE | O_RDWR);
  EXPECT_EQ(code_of(created(nameless.get(), "", kWriter, kOpen, !kNamed)), EDQUOT);
  EXPECT_FALSE(state(sys::handle_of(nameless.get())->ino).exists);
  EXPECT_EQ(entries_.sums().files(), 0u);
  EXPECT_TRUE(backing_.held.empty());
}

TEST_F(OpenFilesTest, ANamelessFileIsThereUntilItIsClosedAndForgotten) {
  supervise();
  const UniqueFd file = open(".", O_TMPFILE | O_RDWR);
  ASSERT_TRUE(created(file.get(), "", kWriter, kOpen, !kNamed));
  const uint64_t f = sys::handle_of(file.get())->ino;
  EXPECT_TRUE(state(f).removed);
  EXPECT_EQ(entries_.sums().files(), 0u);
  EXPECT_EQ(survivors_->kept_inodes().list().size(), 1u);
  close(f, kWriter);
  EXPECT_TRUE(is_kept(f));
  EXPECT_EQ(open(f, kWriter), Presence::kHere) << "by its path in /proc";
  set_lookups(f, 0);
  close(f, kWriter);
  EXPECT_FALSE(state(f).exists);
  EXPECT_TRUE(survivors_->kept_inodes().list().empty());
}

TEST_F(OpenFilesTest, AllOpensOfAnEntryHaveOneBacking) {
  const uint64_t f = store("f");
  const int32_t backing = opened(f).backing;
  EXPECT_GE(backing, 0);
  EXPECT_EQ(opened(f, kWriter).backing, backing);
  EXPECT_EQ(state(f).opens, 2u);
  EXPECT_EQ(state(f).writers, 1u);
  EXPECT_EQ(state(f).hits, 1u) << "by the reader";
  close(f, kWriter);
  EXPECT_EQ(backing_.held.size(), 1u);
  close(f);
  EXPECT_TRUE(backing_.held.empty());
  EXPECT_EQ(state(f).opens, 0u);
  close(f);
  EXPECT_EQ(state(f).opens, 0u) << "as after a takeover that has closed it";
  close(4711);
}

TEST_F(OpenFilesTest, WhatCannotBeOpened) {
  EXPECT_EQ(open(4711), Presence::kGone);
  const uint64_t f = store("f");
  backing_.error = ENFILE;
  EXPECT_EQ(code_of(files_->begin_open(f, kReader, kNoClient)), ENFILE);
  EXPECT_EQ(state(f).opens, 0u);
  backing_.error = 0;
  set_lookups(f, 1);
  unlink("f");
  EXPECT_EQ(open(f), Presence::kGone);
  const uint64_t sought = store("sought");
  ASSERT_TRUE(inodes_->look_up(handle("sought"), root(), "sought", true));
  unlink("sought");
  EXPECT_EQ(open(sought), Presence::kHere);
  close(sought);
}

TEST_F(OpenFilesTest, AColdEntryIsPromotedOrServedFromTheDisk) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  EXPECT_EQ(open(f), Presence::kCold);
  EXPECT_EQ(open(f, {.writer = true, .from_disk = true}), Presence::kCold) << "the disk cannot be written";
  EXPECT_TRUE(opened(f, kFromDisk).from_disk);
  EXPECT_TRUE(is_held(f));
  EXPECT_TRUE(opened(f).from_disk) << "there is one that needs no memory";
  EXPECT_EQ(state(f).opens_from_disk, 2u);
  EXPECT_EQ(counters_.served_from_disk, 2u);
  close(f, kFromDisk);
  EXPECT_TRUE(is_held(f));
  close(f, kFromDisk);
  EXPECT_FALSE(is_held(f));
  EXPECT_EQ(open(f), Presence::kCold);
  EXPECT_TRUE(backing_.held.empty());
  entries_.contents().moves(entry(f), DiskFacts::Move::kPromoting);
  EXPECT_EQ(open(f, kFromDisk), Presence::kCold) << "it is on its way";
  entries_.contents().moves(entry(f), DiskFacts::Move::kNone);
}

TEST_F(OpenFilesTest, ItsContentStaysOnTheDiskAsLongAsItIsReadThere) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  commit();
  const uint64_t free_units = tier().store->space().free_units();
  (void)opened(f, kFromDisk);
  set_lookups(f, 1);
  unlink("f");
  commit();
  EXPECT_EQ(tier().store->space().free_units(), free_units);
  EXPECT_EQ(open(f, kFromDisk), Presence::kHere) << "by its path in /proc";
  close(f, kFromDisk);
  close(f, kFromDisk);
  EXPECT_EQ(tier().store->space().free_units(), free_units + 1);
  EXPECT_EQ(open(f, kFromDisk), Presence::kGone);
}

TEST_F(OpenFilesTest, BesideAReaderFromTheDiskThereIsNoPassthrough) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  (void)opened(f, kFromDisk);
  entries_.contents().moves(entry(f), DiskFacts::Move::kPromoting);
  entries_.contents().moves(entry(f), DiskFacts::Move::kNone);
  entries_.contents().promoted(entry(f), true);
  EXPECT_TRUE(opened(f).from_disk);
  EXPECT_TRUE(backing_.held.empty());
  backing_.daemon_io = true;
  EXPECT_FALSE(opened(f).from_disk);
  EXPECT_EQ(backing_.held.size(), 1u);
}

TEST_F(OpenFilesTest, WithoutItsDiskAColdEntryIsGoneOrAway) {
  const uint64_t f = store("f");
  entries_.contents().found_copy(entry(f), kBlock);
  EXPECT_EQ(open(f), Presence::kGone) << "the catalog is being read";
  (void)lose_disk(std::chrono::hours(1));
  EXPECT_EQ(open(f), Presence::kCold) << "it is waited for";
  (void)lose_disk(std::chrono::hours(0));
  EXPECT_EQ(open(f), Presence::kAway);
}

TEST_F(OpenFilesTest, AnOpenForWritingMakesACopyUntrue) {
  supervise();
  attach_disk();
  const uint64_t f = store("f");
  make_clean(f);
  const uint32_t epoch = state(f).epoch;
  (void)opened(f);
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  (void)opened(f, kWriter);
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
  EXPECT_NE(state(f).epoch, epoch);
  EXPECT_EQ(copy_mark_of(open("f").get())->state, CopyMark::State::kNone);
  close(f, kWriter);
  close(f);
}

TEST_F(OpenFilesTest, WhereACloseIsDurableAFileIsNumberedAtItsOpen) {
  supervise();
  attach_disk(Durability::kSync);
  const uint64_t made = make_open("made");
  EXPECT_TRUE(marks_->is_numbered(entry(made), open("made").get()));
  close(made, kWriter);
  const uint64_t f = store("f");
  {
    const test::NoMarks unprivileged;
    EXPECT_EQ(code_of(files_->begin_open(f, kWriter, kNoClient)), EPERM);
    EXPECT_EQ(state(f).opens, 0u);
  }
  (void)opened(f, kWriter);
  EXPECT_TRUE(marks_->is_numbered(entry(f), open("f").get()));
  close(f, kWriter);
}

TEST_F(OpenFilesTest, AWriterPassesTheDaemonIfItWasPromisedItsMemory) {
  const uint64_t f = store("f"), g = store("g");
  EXPECT_FALSE(opened(f, kWriter).through_daemon);
  EXPECT_TRUE(opened(g, kWriter).through_daemon) << "half of the pool is promised to the other";
  files_->flushed(f);
  EXPECT_FALSE(opened(g, kWriter).through_daemon);
  EXPECT_FALSE(opened(g).through_daemon) << "a reader takes none";
  files_->flushed(4711);
}

TEST_F(OpenFilesTest, ACloseBeginsTheCountOfHitsAnew) {
  const uint64_t f = make_open("f");
  (void)opened(f);
  EXPECT_EQ(state(f).hits, 1u);
  files_->flushed(f);
  EXPECT_EQ(state(f).hits, 0u);
  (void)opened(f);
  close(f, kWriter);
  EXPECT_EQ(state(f).hits, 1u) << "that one came after the close";
}

TEST_F(OpenFilesTest, TheLastCloseGivesBackWhatWasReserved) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = make_open("f");
  files_->begin_writing(f);
  ASSERT_EQ(state(f).reserved_end, kMiB);
  write("f", std::string(100, 'x'));
  close(f, kWriter);
  EXPECT_EQ(state(f).reserved_end, 0u);
  EXPECT_EQ(state(f).charged_bytes, kBlock);
  EXPECT_EQ(arena_->usage().used_bytes(), kBlock);
}

TEST_F(OpenFilesTest, HolesAreGivenBackOnceNoProcessCanWrite) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = make_open("f");
  files_->begin_writing(f);
  UniqueFd mapped = open("f");
  write("f", "x", kMiB - 1);
  close(f, kWriter);
  EXPECT_GT(state(f).reserved_end, 0u);
  mapped.reset();
  (void)opened(f, kWriter);
  EXPECT_EQ(state(f).reserved_end, 0u) << "this was the last occasion";
  EXPECT_LT(arena_->usage().used_bytes(), kMiB);
  close(f, kWriter);
}

TEST_F(OpenFilesTest, WhatAnEntryTookIsLearned) {
  const uint64_t f = make_open("f");
  write("f", std::string(3 * kBlock, 'x'));
  close(f, kWriter);
  EXPECT_EQ(capacity_->learned_entry_bytes(), 3 * kBlock);
}

TEST_F(OpenFilesTest, AWriterThatMetTheEndOfTheMemoryIsReported) {
  const uint64_t f = make_open("f");
  ASSERT_TRUE(sys::allocate(open("f").get(), 0, 0, kPoolBytes));
  close(f, kWriter);
  EXPECT_EQ(counters_.no_space_errors, 1u);
}

TEST_F(OpenFilesTest, AnEntryThatGrowsTooLargeLosesItsPin) {
  const uint64_t f = make_open("f");
  ASSERT_TRUE(tree_->set_pinned(f, true));
  ASSERT_TRUE(sys::allocate(open("f").get(), 0, 0, kPoolBytes / 2 + kBlock));
  close(f, kWriter);
  EXPECT_FALSE(state(f).pinned);
  EXPECT_EQ(code_of(sys::get_xattr(open("f").get(), kPinnedXattr, {})), ENODATA);
}

TEST_F(OpenFilesTest, WithDurabilityWhatIsStoredAnewGoesToTheDisk) {
  attach_disk(Durability::kWriteback);
  const uint64_t f = make_open("f");
  close(f, kWriter);
  EXPECT_FALSE(state(f).spill_queued) << "its client may rename it";
  entries_.published(entry(f));
  (void)opened(f, kWriter);
  close(f, kWriter);
  EXPECT_TRUE(state(f).spill_queued);
}

TEST_F(OpenFilesTest, AnEntryThatIsSharedMayBeAdmittedToTheDisk) {
  attach_disk(Durability::kWriteback);
  tier().admission.set_kind(Admission::kSecondAccess);
  const uint64_t f = store("f");
  disk_->queue_spill(entry(f));
  EXPECT_FALSE(state(f).spill_queued);
  (void)opened(f);
  EXPECT_TRUE(state(f).spill_queued) << "it was opened again after it was stored";
}

TEST_F(OpenFilesTest, AnOpenAsksForWhatFollowedItTheLastTime) {
  attach_disk();
  const uint64_t f = store("f"), g = store("g");
  constexpr uint64_t kClient = 77;
  for (const uint64_t its : {f, g}) EXPECT_EQ(open(its, kReader, kClient), Presence::kHere);
  close(g);
  make_cold(g);
  EXPECT_EQ(open(f, kReader, kClient), Presence::kHere);
  EXPECT_EQ(tier().promoter.queued(), 1u);
}

TEST_F(OpenFilesTest, AnOpenThatWasNotAnsweredIsAnsweredAfterATakeover) {
  const uint64_t f = store("f");
  EXPECT_FALSE(files_->adopted_open(4711, false));
  EXPECT_FALSE(files_->adopted_open(f, false)) << "it was not counted";
  open_entry(f);
  const auto again = files_->adopted_open(f, false);
  ASSERT_TRUE(again);
  EXPECT_TRUE(backing_.held.contains(again->backing));
  EXPECT_EQ(state(f).opens, 1u);
  EXPECT_FALSE(files_->adopted_open(f, true)) << "there may be memory for it now";
  set_lookups(f, 1);
  unlink("f");
  const auto from_disk = files_->adopted_open(f, true);
  ASSERT_TRUE(from_disk) << "it could not be opened again";
  EXPECT_TRUE(from_disk->from_disk);
  EXPECT_EQ(from_disk->backing, -1);
  const uint64_t g = store("g");
  open_entry(g);
  backing_.error = ENFILE;
  EXPECT_FALSE(files_->adopted_open(g, false));
}

}  // namespace kvcachefs::open_files_test
