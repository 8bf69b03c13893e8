// The content of open files, and the memory for it (tier/pool/open_files_data.cc).
#include <gtest/gtest.h>
#include <linux/falloc.h>
#include <sys/syscall.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"
#include "tests/support/system_calls.h"
#include "tier/pool/open_files.h"

namespace kvcachefs::open_files_data_test {

using test::code_of;
using test::pattern;

constexpr OpenMode kWriter{.writer = true};

class OpenFilesDataTest : public test::PoolPartsTest {
 protected:
  OpenFilesDataTest() : PoolPartsTest(Upto::kFiles) {}
  // A file that a client has made and has open for writing.
  uint64_t make_open(const std::string& name) {
    const UniqueFd file = make(name);
    EXPECT_TRUE(files_->created({.fd = file.get(),
                                 .ino = ino(name),
                                 .generation = handle(name).generation,
                                 .open = true,
                                 .writer = true,
                                 .named = true,
                                 .name = name,
                                 .node = 0}));
    return ino(name);
  }
  // The count, or minus an errno.
  int64_t write(uint64_t its, const std::string& bytes, uint64_t offset = 0) {
    const auto written = files_->write(its, bytes, offset);
    return written ? static_cast<int64_t>(written->bytes) : -written.error().code;
  }
  using PoolPartsTest::write;
  int64_t copy_range(const std::string& from, const std::string& to, size_t bytes) {
    const UniqueFd source = open(from), target = open(to);
    const auto copied = files_->copy_range({source.get(), 0}, {target.get(), 0}, bytes);
    return copied ? static_cast<int64_t>(copied->bytes) : -copied.error().code;
  }
  std::string read(uint64_t its, size_t bytes, uint64_t offset = 0) {
    std::string found(bytes, '\0');
    const auto count = files_->read(its, found, offset);
    if (!count) return test::error_name(count.error().code);
    return found.substr(0, *count);
  }
  Presence truncate(uint64_t its, uint64_t bytes) {
    const auto presence = files_->truncate(its, bytes);
    EXPECT_TRUE(presence);
    return presence.value_or(Presence::kAway);
  }
  int allocate(uint64_t its, uint64_t offset, uint64_t length, int mode = 0) {
    return code_of(files_->allocate(its, mode, offset, length));
  }
  uint64_t size(const std::string& name) const { return static_cast<uint64_t>(status(name).st_size); }
  uint64_t taken(const std::string& name) const {
    return static_cast<uint64_t>(status(name).st_blocks) * 512;
  }
};

TEST_F(OpenFilesDataTest, TheDaemonReadsAndWritesByADescriptorOfItsOwn) {
  const uint64_t f = make_open("f");
  EXPECT_EQ(write(f, "some bytes"), 10);
  EXPECT_EQ(write(f, "more", 5), 4);
  EXPECT_EQ(read(f, 100), "some mores");
  EXPECT_EQ(read(f, 100, 50), "");
  EXPECT_EQ(write(4711, "x"), -ESTALE);
  EXPECT_EQ(read(4711, 1), "ESTALE");
}

TEST_F(OpenFilesDataTest, InDaemonIoTheyGoThroughTheOpenFile) {
  backing_.daemon_io = true;
  const uint64_t f = make_open("f");
  EXPECT_EQ(write(f, "some bytes"), 10);
  EXPECT_EQ(read(f, 4, 5), "byte");
  files_->end_open(f, kWriter);
  EXPECT_EQ(read(f, 4), "ESTALE") << "nobody has it open";
  EXPECT_EQ(write(f, "x"), -ESTALE);
}

TEST_F(OpenFilesDataTest, TheFirstWriteReservesAnEntrysMemory) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = make_open("f");
  EXPECT_EQ(write(f, "x", kBlock), 1);
  EXPECT_EQ(state(f).reserved_end, 0u) << "it begins elsewhere";
  const uint64_t g = make_open("g");
  EXPECT_EQ(write(g, "x"), 1);
  EXPECT_EQ(state(g).reserved_end, kMiB);
}

TEST_F(OpenFilesDataTest, AWriteWaitsForRoom) {
  capacity_->set_entry_size(kBlock);
  const uint64_t f = make_open("f");
  ASSERT_EQ(write(f, std::string(kBlock, 'a')), static_cast<int64_t>(kBlock));
  (void)fill_up();
  std::thread evictor = answer_next(Room::Answer::kNothingToEvict);
  EXPECT_EQ(write(f, std::string(kBlock, 'b'), kBlock), -ENOSPC);
  evictor.join();
  EXPECT_EQ(counters_.no_space_errors, 1u);
  EXPECT_EQ(write(f, std::string(kBlock, 'b')), static_cast<int64_t>(kBlock)) << "that takes no more";
  evictor = answer_next(Room::Answer::kNothingToEvict);
  EXPECT_EQ(write(f, std::string(2 * kBlock, 'c')), static_cast<int64_t>(kBlock)) << "what there is room for";
  evictor.join();
  EXPECT_EQ(counters_.no_space_errors, 2u);
  evictor = answer_next(Room::Answer::kTryAgain);
  EXPECT_EQ(write(f, pattern(1, kMiB)), static_cast<int64_t>(kMiB));
  evictor.join();
  EXPECT_EQ(content("f"), pattern(1, kMiB));
  EXPECT_EQ(counters_.no_space_errors, 2u);
}

TEST_F(OpenFilesDataTest, AWriteIntoHolesMayEndInTheMiddle) {
  const uint64_t f = make_open("f");
  ASSERT_EQ(write(f, std::string(2 * kBlock, 'a'), kMiB), static_cast<int64_t>(2 * kBlock));
  const UniqueFd last = make("the last free block");
  ASSERT_TRUE(sys::allocate(last.get(), 0, 0, kBlock));
  (void)fill_up();
  ASSERT_TRUE(sys::truncate(last.get(), 0));
  std::thread evictor = answer_next(Room::Answer::kNothingToEvict);
  EXPECT_EQ(write(f, std::string(2 * kBlock, 'b')), static_cast<int64_t>(kBlock));
  evictor.join();
  EXPECT_EQ(counters_.no_space_errors, 1u);
}

TEST_F(OpenFilesDataTest, ACopyOfARangeWaitsForRoom) {
  const std::string bytes = pattern(1, 2 * kBlock);
  (void)store("from", bytes);
  const uint64_t to = make_open("to");
  EXPECT_EQ(copy_range("from", "to", kBlock), static_cast<int64_t>(kBlock));
  files_->end_open(to, kWriter);
  (void)fill_up();
  (void)make_open("other");
  std::thread evictor = answer_next(Room::Answer::kNothingToEvict);
  EXPECT_EQ(copy_range("from", "other", kBlock), -ENOSPC);
  evictor.join();
  EXPECT_EQ(counters_.no_space_errors, 1u);
  evictor = answer_next(Room::Answer::kTryAgain);
  EXPECT_EQ(copy_range("from", "other", 2 * kBlock), static_cast<int64_t>(2 * kBlock));
  evictor.join();
  EXPECT_EQ(content("other"), bytes);
  EXPECT_EQ(code_of(files_->copy_range({-1, 0}, {-1, 0}, 1)), EBADF);
}

TEST_F(OpenFilesDataTest, ATruncationIsAChangeOfContent) {
  const uint64_t f = store("f", pattern(1, 3 * kBlock));
  const test::EntryState before = state(f);
  EXPECT_EQ(truncate(f, 100), Presence::kHere);
  EXPECT_EQ(content("f"), pattern(1, 100));
  EXPECT_EQ(state(f).version, before.version + 1);
  EXPECT_NE(state(f).epoch, before.epoch);
  EXPECT_EQ(state(f).first_version, before.first_version);
  EXPECT_EQ(state(f).charged_bytes, kBlock);
  EXPECT_EQ(entries_.sums().stored_bytes(Entry::Tier::kDirty), kBlock);
  EXPECT_EQ(truncate(f, 0), Presence::kHere);
  EXPECT_EQ(state(f).first_version, state(f).version) << "what came before is older";
  EXPECT_FALSE(state(f).emptied) << "the catalog has no content of it";
  EXPECT_EQ(truncate(4711, 0), Presence::kGone);
}

TEST_F(OpenFilesDataTest, AFileThatIsEmptiedMayGetAReservation) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = store("f");
  (void)files_->begin_open(f, kWriter, 0);
  EXPECT_EQ(truncate(f, 0), Presence::kHere);
  EXPECT_EQ(write(f, "x"), 1);
  EXPECT_EQ(state(f).reserved_end, kMiB);
  EXPECT_EQ(truncate(f, 0), Presence::kHere);
  EXPECT_EQ(state(f).reserved_end, 0u) << "it is gone with the content";
  EXPECT_EQ(write(f, "x"), 1);
  EXPECT_EQ(state(f).reserved_end, kMiB);
}

TEST_F(OpenFilesDataTest, AColdFileNeedsItsContentUnlessItLosesAll) {
  supervise();
  attach_disk();
  const uint64_t f = store("f", pattern(1, 2 * kBlock));
  make_cold(f);
  EXPECT_EQ(truncate(f, 100), Presence::kCold);
  EXPECT_EQ(size("f"), 2 * kBlock);
  EXPECT_EQ(truncate(f, 0), Presence::kHere);
  EXPECT_EQ(size("f"), 0u);
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
  EXPECT_TRUE(state(f).emptied);
  EXPECT_EQ(copy_mark_of(open("f").get())->state, CopyMark::State::kNone);
  const uint64_t g = store("g");
  make_cold(g);
  entries_.contents().moves(entry(g), DiskFacts::Move::kPromoting);
  EXPECT_EQ(truncate(g, 0), Presence::kCold) << "its pages are on their way";
  entries_.contents().moves(entry(g), DiskFacts::Move::kNone);
}

TEST_F(OpenFilesDataTest, AColdFileWithoutItsDisk) {
  const uint64_t f = store("f");
  entries_.contents().found_copy(entry(f), kBlock);
  EXPECT_EQ(truncate(f, 1), Presence::kGone);
  (void)lose_disk(std::chrono::hours(1));
  EXPECT_EQ(truncate(f, 1), Presence::kCold);
  (void)lose_disk(std::chrono::hours(0));
  EXPECT_EQ(truncate(f, 1), Presence::kAway);
  set_lookups(f, 1);
  ASSERT_TRUE(tree_->remove(root(), "f", false));
  EXPECT_EQ(truncate(f, 1), Presence::kGone) << "it does not come back";
}

// Missing pages must not pass for content, nor other pages for what the disk has.
TEST_F(OpenFilesDataTest, AFileIsCutBeforeItIsMarkedIfItIsColdAndElseAfter) {
  supervise();
  attach_disk();
  const auto calls = [&](uint64_t its) {
    return test::calls_in({SYS_ftruncate, SYS_fsetxattr}, [&] { (void)files_->truncate(its, 0); });
  };
  const uint64_t f = store("f");
  make_clean(f);
  EXPECT_EQ(calls(f), (std::vector<int>{SYS_fsetxattr, SYS_ftruncate}));
  make_cold(f);
  EXPECT_EQ(calls(f), (std::vector<int>{SYS_ftruncate, SYS_fsetxattr}));
}

// Else a later rename would give another name a content that it never had.
TEST_F(OpenFilesDataTest, ACopyFromBeforeATruncationIsVoidAlsoIfTheCatalogHasNoneYet) {
  supervise();
  attach_disk();
  const uint64_t f = store("f");
  ASSERT_TRUE(marks_->number(entry(f), open("f").get()));
  open_entry(f, kWriter);
  const auto snapshot = residency_->begin_spill(f, true);
  ASSERT_TRUE(snapshot && !snapshot->proven);
  EXPECT_EQ(truncate(f, 0), Presence::kHere);
  CatalogContent older = put(std::string(kBlock, 'x'));
  older.version = snapshot->version;
  EXPECT_FALSE(residency_->end_spill(*snapshot, {.content = std::move(older)}));
  EXPECT_FALSE(copy(f));
  EXPECT_EQ(catalogued("f"), 0u);

  const auto later = residency_->begin_spill(f, true);
  ASSERT_TRUE(later);
  CatalogContent empty = put("");
  empty.version = later->version;
  EXPECT_TRUE(residency_->end_spill(*later, {.content = std::move(empty)}));
}

TEST_F(OpenFilesDataTest, AnEmptiedFileThatTheCatalogHasTellsASuccessorSo) {
  supervise();
  attach_disk();
  const uint64_t f = store("f");
  make_clean(f);
  (void)files_->begin_open(f, kWriter, 0);
  EXPECT_EQ(truncate(f, 0), Presence::kHere);
  EXPECT_TRUE(state(f).emptied);
  const auto mark = copy_mark_of(open("f").get());
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->node_id, state(f).node_id);
  EXPECT_EQ(mark->first_version, state(f).first_version);
  EXPECT_GT(mark->first_version, 0u);
}

// Else a sync that waits for its copy would wait until its writer closes it.
TEST_F(OpenFilesDataTest, AFileWhoseCopyWasAskedForKeepsItsNumberWhenItIsEmptied) {
  supervise();
  attach_disk();
  const uint64_t f = store("f");
  const UniqueFd file = open("f");
  ASSERT_TRUE(marks_->number(entry(f), file.get()));
  const uint64_t number = promised_number(copy_mark_of(file.get()));
  (void)files_->begin_open(f, kWriter, 0);
  EXPECT_EQ(truncate(f, 0), Presence::kHere);
  EXPECT_TRUE(marks_->is_numbered(entry(f), file.get()));
  EXPECT_EQ(promised_number(copy_mark_of(file.get())), number);
}

TEST_F(OpenFilesDataTest, WhatIsCutWithoutBeingOpenGoesToTheDiskAndMayLoseItsPin) {
  attach_disk(Durability::kWriteback);
  const uint64_t f = store("f");
  ASSERT_TRUE(tree_->set_pinned(f, true));
  EXPECT_EQ(truncate(f, kPoolBytes / 2), Presence::kHere);
  EXPECT_TRUE(state(f).pinned);
  EXPECT_TRUE(state(f).spill_queued);
  EXPECT_EQ(truncate(f, kPoolBytes / 2 + 1), Presence::kHere);
  EXPECT_FALSE(state(f).pinned) << "its holes can come to take memory";
}

TEST_F(OpenFilesDataTest, AnAllocationBeyondTheEndIsTheClients) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = make_open("f");
  EXPECT_EQ(write(f, "x"), 1);
  ASSERT_EQ(taken("f"), kMiB);
  EXPECT_EQ(allocate(f, 0, kBlock, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE), 0);
  EXPECT_EQ(state(f).reserved_end, kMiB) << "that takes nothing";
  EXPECT_EQ(allocate(f, 2 * kBlock, kBlock, FALLOC_FL_KEEP_SIZE), 0);
  EXPECT_EQ(state(f).reserved_end, 0u);
  EXPECT_EQ(size("f"), 1u);
  EXPECT_EQ(taken("f"), kBlock);
  files_->end_open(f, kWriter);
  EXPECT_EQ(taken("f"), kBlock);
  EXPECT_EQ(allocate(4711, 0, 1), ESTALE);
  EXPECT_EQ(allocate(f, 0, 0), EINVAL);
}

TEST_F(OpenFilesDataTest, AWriterThatAllocatesItsMemoryNeedsNoPromise) {
  const uint64_t f = make_open("f");
  ASSERT_GT(capacity_->writers().promised_to(f), 0u);
  EXPECT_EQ(allocate(f, 0, kMiB / 2), 0);
  EXPECT_GT(capacity_->writers().promised_to(f), 0u) << "it may be the first of many";
  EXPECT_EQ(allocate(f, 0, kMiB), 0);
  EXPECT_EQ(capacity_->writers().promised_to(f), 0u);
}

TEST_F(OpenFilesDataTest, AnAllocationWaitsForRoom) {
  const uint64_t f = make_open("f");
  (void)fill_up();
  EXPECT_EQ(allocate(f, 0, kPoolBytes + 1), ENOSPC);
  EXPECT_EQ(counters_.no_space_errors, 1u) << "it waits for no eviction";
  std::thread evictor = answer_next(Room::Answer::kNothingToEvict);
  EXPECT_EQ(allocate(f, 0, kMiB), ENOSPC);
  evictor.join();
  EXPECT_EQ(counters_.no_space_errors, 2u);
  evictor = answer_next(Room::Answer::kTryAgain);
  EXPECT_EQ(allocate(f, 0, kMiB), 0);
  evictor.join();
  EXPECT_EQ(taken("f"), kMiB);
}

TEST_F(OpenFilesDataTest, ANewFileIsPlacedWhereThereIsRoom) {
  const NumaTopology two({{.id = 0, .cpus = {}, .distances = {10, 20}}, {.id = 1, .distances = {20, 10}}},
                         [](int node) { return node == 1 ? uint64_t{1} << 40 : 0; });
  const UniqueFd file = make("f");
  EXPECT_EQ(files_->place(file.get(), 0), 0) << "the only node";
  surroundings_.topology = &two;
  EXPECT_EQ(files_->place(file.get(), 0), 1);
}

// Only where the writer will be promised that much, and something can go.
TEST_F(OpenFilesDataTest, RoomForANewEntryIsMadeBefore) {
  capacity_->limit().set_size(uint64_t{1} << 30);
  capacity_->set_entry_size(kMiB);
  (void)fill_up();
  EXPECT_EQ(files_->make_way({}), Tried::kDone);
  EXPECT_EQ(counters_.reservation_waits, 0u) << "nothing can go";
  entries_.contents().charged(entry(store("g", "")), kBlock);
  EXPECT_EQ(files_->make_way({.may_wait = false}), Tried::kWouldWait);
  std::thread evictor = answer_next(Room::Answer::kTryAgain);
  EXPECT_EQ(files_->make_way({}), Tried::kDone);
  evictor.join();
  EXPECT_EQ(counters_.reservation_waits, 1u);
  EXPECT_GE(arena_->usage().free_bytes, kMiB);
}

}  // namespace kvcachefs::open_files_data_test
