#include "tests/support/reservations_test.h"

#include <linux/falloc.h>

namespace kvcachefs::reservations_test {

TEST_F(ReservationsTest, AFirstWriteOfUnknownSizeGetsWhatIsFree) {
  Entry& entry = create("entry");
  const UniqueFd other = make("other");
  ASSERT_TRUE(sys::allocate(other.get(), 0, 0, 29 * kMiB));
  EXPECT_EQ(reservations_->begin_writing(ino_, {.may_wait = false}), Tried::kDone);
  EXPECT_EQ(taken(), 0u) << "nothing leaves for a guess";
  entry.memory.wants_reservation = true;
  ASSERT_TRUE(sys::truncate(other.get(), 0));
  EXPECT_EQ(reservations_->begin_writing(ino_, {.may_wait = false}), Tried::kDone);
  EXPECT_EQ(taken(), 4 * kMiB);
}

TEST_F(ReservationsTest, AFirstWriteGetsTheMemoryOfAnEntry) {
  Entry& entry = create("entry");
  const struct stat before = status();
  capacity_->set_entry_size(kMiB);
  entry.memory.wants_reservation = false;
  reservations_->begin_writing(ino_);
  EXPECT_EQ(taken(), 0u) << "its first write may be under way";
  entry.memory.wants_reservation = true;
  reservations_->begin_writing(ino_);
  EXPECT_EQ(taken(), kMiB);
  EXPECT_EQ(entry.memory.reserved_end, kMiB);
  EXPECT_EQ(capacity_->writers().reserved_bytes(), kMiB);
  EXPECT_EQ(counters_.reservations, 1u);
  EXPECT_EQ(counters_.reservation_failures, 0u);
  const struct stat after = status();
  EXPECT_EQ(after.st_size, 0);
  EXPECT_EQ(after.st_mtim.tv_sec, before.st_mtim.tv_sec);
  EXPECT_EQ(after.st_mtim.tv_nsec, before.st_mtim.tv_nsec) << "users see nothing of it";
  reservations_->begin_writing(ino_);
  EXPECT_EQ(counters_.reservations, 1u) << "it has one";
}

TEST_F(ReservationsTest, OnlyAnEmptyFileWithAWriterGetsOne) {
  capacity_->set_entry_size(kMiB);
  reservations_->begin_writing(4711);
  Entry& entry = create("entry");
  write(0, 1);
  reservations_->begin_writing(ino_);
  EXPECT_EQ(taken(), kBlock) << "its memory comes by its writes";
  entry.memory.wants_reservation = true;
  ASSERT_TRUE(sys::truncate(file_.get(), 0));
  entry.writer_count = 0;
  reservations_->begin_writing(ino_);
  EXPECT_EQ(taken(), 0u);
  EXPECT_EQ(counters_.reservations, 0u);
}

TEST_F(ReservationsTest, AQuarterOfThePoolIsReservedAtMost) {
  resize(8 * kMiB);
  capacity_->set_entry_size(kMiB);
  for (const char* name : {"a", "b"}) {
    create(name);
    reservations_->begin_writing(ino_);
    EXPECT_EQ(taken(), kMiB) << name;
  }
  create("c");
  reservations_->begin_writing(ino_);
  EXPECT_EQ(taken(), 0u) << "a quarter is reserved";
  EXPECT_EQ(counters_.reservations, 2u);
}

TEST_F(ReservationsTest, ASingleOneMayBeMore) {
  resize(8 * kMiB);
  capacity_->set_entry_size(4 * kMiB);
  create("entry");
  reservations_->begin_writing(ino_);
  EXPECT_EQ(taken(), 4 * kMiB);
}

TEST_F(ReservationsTest, WithoutRoomThereIsNone) {
  const UniqueFd other = make("other");
  ASSERT_TRUE(sys::allocate(other.get(), 0, 0, 31 * kMiB + kBlock));
  capacity_->set_entry_size(kMiB);
  capacity_->close();  // no evictor is waited for
  Entry& entry = create("entry");
  capacity_->writers().raise(ino_, kMiB);
  reservations_->begin_writing(ino_);
  EXPECT_EQ(taken(), 0u);
  EXPECT_EQ(entry.memory.reserved_end, 0u);
  EXPECT_EQ(counters_.reservations, 1u);
  EXPECT_EQ(counters_.reservation_failures, 1u);
}

// No entry leaves for a reservation, which may never be written.
TEST_F(ReservationsTest, WithLittleRoomThereIsLess) {
  const UniqueFd other = make("other");
  ASSERT_TRUE(sys::allocate(other.get(), 0, 0, 28 * kMiB));
  capacity_->set_entry_size(4 * kMiB);
  capacity_->writers().open(4711, 0, kMiB, 32 * kMiB);
  Entry& entry = create("entry");
  EXPECT_EQ(reservations_->begin_writing(ino_, {.may_wait = false}), Tried::kDone);
  EXPECT_EQ(taken(), 2 * kMiB)
      << "of four another writer was promised one, and one is for writes that follow";
  EXPECT_EQ(entry.memory.reserved_end, 2 * kMiB);
  EXPECT_EQ(capacity_->writers().reserved_bytes(), 2 * kMiB);
  EXPECT_EQ(counters_.reservation_failures, 0u);
  create("next");
  EXPECT_EQ(reservations_->begin_writing(ino_, {.may_wait = false}), Tried::kDone);
  EXPECT_EQ(taken(), 0u);
  create("promised");
  capacity_->writers().raise(ino_, kMiB);
  EXPECT_EQ(reservations_->begin_writing(ino_, {.may_wait = false}), Tried::kDone);
  EXPECT_EQ(taken(), kMiB) << "a writer with passthrough gets what it was promised";
  EXPECT_EQ(counters_.reservations, 2u);
}

TEST_F(ReservationsTest, WhatIsWrittenIsReservedNoLonger) {
  capacity_->set_entry_size(4 * kMiB);
  create("entry");
  reservations_->begin_writing(ino_);
  write(0, kMiB);
  reservations_->follow_writers();
  EXPECT_EQ(capacity_->writers().reserved_bytes(), 3 * kMiB);
}

TEST_F(ReservationsTest, AWriterTakesWhatItWasPromised) {
  capacity_->set_entry_size(kMiB);
  create("entry");
  capacity_->writers().raise(ino_, 2 * kMiB);
  reservations_->begin_writing(ino_);
  EXPECT_EQ(capacity_->writers().promised_to(ino_), kMiB) << "half of it is memory now";
}

TEST_F(ReservationsTest, TrimmingKeepsTheBlockOfTheLastByte) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  reservations_->begin_writing(ino_);
  write(0, kBlock + 1);
  const struct stat before = status();
  EXPECT_EQ(reservations_->trim(entry, file_.get()), kBlock + 1);
  EXPECT_EQ(taken(), 2 * kBlock);
  EXPECT_EQ(entry.memory.reserved_end, 0u);
  EXPECT_EQ(status().st_mtim.tv_nsec, before.st_mtim.tv_nsec);
  EXPECT_EQ(status().st_size, static_cast<off_t>(kBlock + 1));
}

TEST_F(ReservationsTest, TrimmingTakesTheBlockInWhichAReservationEnds) {
  Entry& entry = create("entry");
  ASSERT_TRUE(sys::allocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, kBlock + 1));
  entry.memory.reserved_end = kBlock + 1;
  ASSERT_EQ(taken(), 2 * kBlock);
  write(0, 1);
  EXPECT_EQ(reservations_->trim(entry, file_.get()), 1u);
  EXPECT_EQ(taken(), kBlock);
}

TEST_F(ReservationsTest, MemoryBeyondTheReservationIsItsOwners) {
  Entry& entry = create("entry");
  ASSERT_TRUE(sys::allocate(file_.get(), FALLOC_FL_KEEP_SIZE, 0, 4 * kBlock));
  entry.memory.reserved_end = 2 * kBlock;
  EXPECT_EQ(reservations_->trim(entry, file_.get()), 0u);
  EXPECT_EQ(taken(), 2 * kBlock) << "its owner has allocated the rest";
}

TEST_F(ReservationsTest, AWholeFileTeachesItsSize) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  reservations_->begin_writing(ino_);
  write(0, 100 * kKiB);
  EXPECT_EQ(reservations_->settle(entry).charged, 100 * kKiB);
  EXPECT_EQ(capacity_->learned_entry_bytes(), 100 * kKiB);
  EXPECT_EQ(entry.memory.reserved_end, 0u);
}

TEST_F(ReservationsTest, AnEmptyFileTeachesNothing) {
  Entry& entry = create("entry");
  EXPECT_EQ(reservations_->settle(entry).charged, 0u);
  EXPECT_EQ(capacity_->learned_entry_bytes(), 0u);
}

TEST_F(ReservationsTest, AFileWithHolesTeachesNothingAndKeepsItsReservation) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  reservations_->begin_writing(ino_);
  write(kMiB - kBlock, kBlock);
  EXPECT_EQ(reservations_->settle(entry).charged, kMiB);
  EXPECT_EQ(capacity_->learned_entry_bytes(), 0u);
  EXPECT_EQ(entry.memory.reserved_end, kMiB);
}

TEST_F(ReservationsTest, WhatIsGoneStaysAtItsCharge) {
  Entry& entry = create("entry");
  entry.memory.charged_bytes = 17;
  file_.reset();
  ASSERT_EQ(::unlinkat(arena_->tree_fd(), "entry", 0), 0);
  EXPECT_EQ(reservations_->settle(entry).charged, 17u);
  reservations_->give_back_holes(entry);
  EXPECT_EQ(entry.memory.charged_bytes, 17u);
}

TEST_F(ReservationsTest, HolesAreGivenBackWhenNoProcessCanWrite) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  entry.kernel.lookup_count = 1;
  reservations_->begin_writing(ino_);
  write(kMiB - kBlock, kBlock);
  reservations_->give_back_holes(entry);
  EXPECT_EQ(taken(), kMiB) << "its writer could fill them";
  close_writer(entry);
  ASSERT_EQ(entry.memory.charged_bytes, kMiB);
  const UniqueFd another = open("entry", O_RDWR);
  reservations_->give_back_holes(entry);
  EXPECT_EQ(taken(), kMiB) << "a process that the daemon does not know of could";
  EXPECT_TRUE(listener_.changed_inodes.empty());
}

TEST_F(ReservationsTest, TheKernelHearsOfBlocksThatAreGivenBack) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  entry.kernel.lookup_count = 1;
  reservations_->begin_writing(ino_);
  write(kMiB - kPart, kPart);
  close_writer(entry);
  reservations_->give_back_holes(entry);
  EXPECT_EQ(taken(), kPart);
  EXPECT_EQ(entry.memory.charged_bytes, kPart);
  EXPECT_EQ(entry.memory.reserved_end, 0u);
  EXPECT_EQ(listener_.changed_inodes, std::vector<uint64_t>{ino_});
}

TEST_F(ReservationsTest, AKernelThatDoesNotKnowTheInodeHearsNothing) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  reservations_->begin_writing(ino_);
  write(kMiB - kPart, kPart);
  close_writer(entry);
  reservations_->give_back_holes(entry);
  EXPECT_EQ(taken(), kPart);
  EXPECT_TRUE(listener_.changed_inodes.empty());
}

TEST_F(ReservationsTest, AColdEntryHasNoHoles) {
  Entry& entry = create("entry");
  write(0, kBlock);
  close_writer(entry);
  entry.tier = Entry::Tier::kCold;
  entry.memory.reserved_end = kMiB;
  reservations_->give_back_holes(entry);
  EXPECT_EQ(entry.memory.reserved_end, kMiB);
}

TEST_F(ReservationsTest, OnlyWritersAreFollowed) {
  EXPECT_FALSE(reservations_->follow_writers());
  capacity_->writers().open(4711, 0, true);
  EXPECT_TRUE(reservations_->follow_writers()) << "a writer, though of an inode that is gone";
  EXPECT_FALSE(capacity_->writer_outruns());
}

// The file is not changed: a client's write may hold its lock.
TEST_F(ReservationsTest, AWriterThatOutgrowsAllIsPromisedMore) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  reservations_->begin_writing(ino_);
  write(0, kMiB + kBlock);
  EXPECT_TRUE(reservations_->follow_writers());
  constexpr uint64_t kGrowth = 4 * kMiB;  // an eighth of the pool
  EXPECT_EQ(entry.memory.reserved_end, kMiB);
  EXPECT_EQ(taken(), kMiB + kBlock);
  EXPECT_EQ(capacity_->writers().promised_to(ino_), kGrowth);
  const UniqueFd other = make("other");
  ASSERT_TRUE(sys::allocate(other.get(), 0, 0, arena_->usage().free_bytes - kGrowth));
  EXPECT_FALSE(capacity_->writer_outruns());
  ASSERT_TRUE(sys::allocate(other.get(), 0, 0, arena_->usage().used_bytes() - taken() + kBlock));
  EXPECT_TRUE(capacity_->writer_outruns()) << "it may grow by an eighth of the pool before the next round";
  EXPECT_TRUE(reservations_->follow_writers());
  EXPECT_TRUE(capacity_->writer_outruns()) << "it has paused, and may go on";
}

TEST_F(ReservationsTest, AnIdleWriterIsSeenWhenItGoesOn) {
  create("entry");
  const auto rest = [&](uint64_t ino) {
    capacity_->writers().flushed(ino);  // as after a second without growth
    (void)capacity_->writers().seen(ino, 0, 0, 0);
  };
  rest(ino_);
  for (uint64_t ino = 1'000'000; ino < 1'000'200; ++ino) {
    capacity_->writers().open(ino, 0, true);
    rest(ino);
  }
  EXPECT_TRUE(reservations_->follow_writers());
  EXPECT_TRUE(capacity_->writers().next_to_see(0).empty());
  for (int round = 0; round < 4; ++round) {
    write(round * kMiB, kMiB);
    reservations_->follow_writers();
  }
  EXPECT_EQ(capacity_->writers().next_to_see(0), std::vector<uint64_t>{ino_});
  EXPECT_GT(capacity_->writers().promised_to(ino_), 0u);
}

TEST_F(ReservationsTest, AWriterThatWillEndWithinItsReservationIsLeftAlone) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  reservations_->begin_writing(ino_);
  write(0, kMiB - kBlock);
  reservations_->follow_writers();
  EXPECT_EQ(entry.memory.reserved_end, kMiB);
  EXPECT_EQ(taken(), kMiB);
  EXPECT_EQ(capacity_->writers().promised_to(ino_), 0u);
}

TEST_F(ReservationsTest, AWriterThatHasFlushedOrGoesThroughTheDaemonIsPromisedNothing) {
  capacity_->set_entry_size(kMiB);
  create("entry");
  reservations_->begin_writing(ino_);
  write(0, 2 * kMiB);
  reservations_->follow_writers();
  ASSERT_GT(capacity_->writers().promised_to(ino_), 0u);
  capacity_->writers().flushed(ino_);
  reservations_->follow_writers();
  EXPECT_EQ(capacity_->writers().promised_to(ino_), 0u);
  (void)capacity_->writers().close(ino_, taken());
  capacity_->writers().open(ino_, 0, false);
  write(2 * kMiB, kBlock);
  reservations_->follow_writers();
  EXPECT_EQ(capacity_->writers().promised_to(ino_), 0u);
}

TEST_F(ReservationsTest, InAFullPoolAWriterIsExpectedToGrowButGetsNoMemory) {
  capacity_->set_entry_size(kMiB);
  Entry& entry = create("entry");
  reservations_->begin_writing(ino_);
  write(0, 2 * kMiB);
  const UniqueFd other = make("other");
  // Twice as much as would be reserved has to be free.
  ASSERT_TRUE(sys::allocate(other.get(), 0, 0, arena_->usage().free_bytes - 16 * kMiB));
  reservations_->follow_writers();
  EXPECT_EQ(entry.memory.reserved_end, kMiB);
  EXPECT_EQ(taken(), 2 * kMiB);
  EXPECT_EQ(capacity_->writers().promised_to(ino_), 4 * kMiB);
}

}  // namespace kvcachefs::reservations_test
