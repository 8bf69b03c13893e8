#include "tier/pool/disk_requests.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs {
namespace {

using test::code_of;
using test::pattern;

class DiskRequestsTest : public test::PoolPartsTest {
 protected:
  DiskRequestsTest() : PoolPartsTest(Upto::kRequests) {}
  uint64_t root_ino() const { return arena_->tree().ino; }
  void sync(uint64_t its, bool locked = true) { requests_->sync(its, waiter(), locked); }
  // Copies to the disk are made, and the catalog hears of nothing.
  bool spill_until(const std::function<bool()>& done) {
    return test::eventually([&] {
      tier().spiller.step(std::chrono::milliseconds(1));
      return done();
    });
  }
  // What the waiter is told in the end.
  int outcome() {
    EXPECT_TRUE(work_until([&] { return told() != kToldNothing; }));
    return told();
  }
  bool is_durable(const std::string& name) { return catalogued(name) != 0; }
  std::optional<PromoteOutcome::Kind> promote(uint64_t its) {
    std::optional<PromoteOutcome::Kind> kind;
    requests_->promote(its, [&](const PromoteOutcome& outcome) { kind = outcome.kind; });
    EXPECT_TRUE(kind || work_until([&] { return kind.has_value(); }));
    return kind;
  }
  // What a client that reads gets: bytes, or the name of an errno.
  std::string read(uint64_t its, uint64_t offset, size_t size) {
    std::optional<std::string> result;
    requests_->read_from_disk(its, offset, size, [&](Result<std::span<const std::byte>> bytes) {
      result = bytes ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())
                     : test::error_name(bytes.error().code);
    });
    EXPECT_TRUE(result || work_until([&] { return result.has_value(); }));
    return result.value_or("");
  }
  int seek_fails_with(uint64_t its, uint64_t offset, int whence) {
    return code_of(requests_->seek_on_disk(its, offset, whence));
  }
  static CopyMark mark_of(const Nameless& nameless) {
    const auto mark = copy_mark_of(nameless.file.get());
    EXPECT_TRUE(mark);
    return mark.value_or(CopyMark());
  }
};

TEST_F(DiskRequestsTest, WithoutADiskNothingIsWaitedFor) {
  const uint64_t f = store("f", "bytes");
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kPromoted);
  sync(f);
  EXPECT_EQ(told(), kToldWell);
  requests_->sync_directory(root_ino(), waiter());
  EXPECT_EQ(told(), kToldWell);
  requests_->sync_name(root(), "f", waiter());
  EXPECT_EQ(told(), kToldWell);
  requests_->spill_all();
  EXPECT_EQ(read(f, 0, 10), "bytes");
  EXPECT_EQ(read(4711, 0, 10), "ESTALE");
  EXPECT_EQ(code_of(requests_->start_scrub(1)), EOPNOTSUPP);
  EXPECT_EQ(code_of(requests_->stop_scrub()), EOPNOTSUPP);
  EXPECT_FALSE(requests_->scrub_progress().running);
}

TEST_F(DiskRequestsTest, ADiskThatIsAwayIsWaitedForAsLongAsThePatience) {
  const uint64_t f = store("f");
  AwayDisk& away = lose_disk(std::chrono::hours(1));
  std::optional<PromoteOutcome> promoted;
  requests_->promote(f, [&](const PromoteOutcome& outcome) { promoted = outcome; });
  sync(f);
  EXPECT_FALSE(promoted);
  EXPECT_EQ(told(), kToldNothing);
  away.close();
  EXPECT_EQ(promoted->kind, PromoteOutcome::Kind::kEnding);
  EXPECT_EQ(told(), ESHUTDOWN);
}

TEST_F(DiskRequestsTest, ADiskThatStaysAwayGivesAnError) {
  const uint64_t f = store("f", "bytes");
  (void)lose_disk(std::chrono::hours(0));
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kFailed);
  sync(f);
  EXPECT_EQ(told(), EIO);
  requests_->sync_directory(root_ino(), waiter());
  EXPECT_EQ(told(), EIO);
  EXPECT_EQ(code_of(requests_->start_scrub(1)), EIO);
  EXPECT_EQ(read(f, 0, 10), "bytes") << "it is in memory";
  entries_.found_copy(entry(f), kBlock);
  EXPECT_EQ(read(f, 0, 10), "EIO");
  EXPECT_EQ(seek_fails_with(f, 0, SEEK_DATA), EIO);
}

TEST_F(DiskRequestsTest, OfARemovedPoolNothingIsKept) {
  attach_disk();
  const uint64_t f = store("f");
  capacity_->close();
  sync(f);
  EXPECT_EQ(told(), kToldWell);
  requests_->sync_directory(root_ino(), waiter());
  EXPECT_EQ(told(), kToldWell);
  EXPECT_EQ(tier().spiller.backlog_bytes(), 0u);
  requests_->when_committed(waiter());
  EXPECT_EQ(told(), kToldWell);
}

TEST_F(DiskRequestsTest, APromotionAnswersWhenTheBytesAreThere) {
  attach_disk();
  const uint64_t f = store("f", pattern(1, kBlock));
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kPromoted) << "there was nothing to do";
  make_cold(f);
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kPromoted);
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_EQ(content("f"), pattern(1, kBlock));
  EXPECT_EQ(counters_.promote_waits, 2u);
  tier().close();
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kEnding);
}

// Memory that runs short goes to a reader's promotion last, who can do without.
TEST_F(DiskRequestsTest, AWriterWaitsForMemoryAndAReaderDoesNot) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  (void)fill_up();
  EXPECT_EQ(promote(f), PromoteOutcome::Kind::kIntactOnDisk);
  std::optional<PromoteOutcome::Kind> kind;
  requests_->promote(
      f, [&](const PromoteOutcome& outcome) { kind = outcome.kind; }, Room::Whose::kWriter,
      now_coarse_ms() + 1'000'000);
  EXPECT_TRUE(work_until([&] { return capacity_->room().wanted_bytes(Room::Whose::kWriter) > 0; }));
  EXPECT_FALSE(kind);
  ASSERT_EQ(::unlinkat(root(), "fills the pool up", 0), 0);
  capacity_->room().room_made();
  EXPECT_TRUE(work_until([&] { return kind.has_value(); }));
  EXPECT_EQ(kind, PromoteOutcome::Kind::kPromoted);
}

TEST_F(DiskRequestsTest, BytesComeFromWhereTheyAre) {
  attach_disk();
  const std::string bytes = pattern(1, kUnitBytes + 100);
  const uint64_t f = store("f", bytes);
  make_cold(f);
  EXPECT_EQ(read(f, 0, 10), "ESTALE") << "nobody has it open from there";
  hold_on_disk(f);
  EXPECT_EQ(read(f, 10, 100), bytes.substr(10, 100));
  EXPECT_EQ(read(f, kUnitBytes - 10, 1000), bytes.substr(kUnitBytes - 10)) << "to its end";
  EXPECT_EQ(read(f, 2 * kUnitBytes, 10), "");
  ASSERT_EQ(promote(f), PromoteOutcome::Kind::kPromoted);
  const uint64_t reads = device_->counts().reads;
  EXPECT_EQ(read(f, 10, 100), bytes.substr(10, 100));
  EXPECT_EQ(read(f, 2 * kUnitBytes, 10), "");
  EXPECT_EQ(device_->counts().reads, reads) << "it is in memory";
}

TEST_F(DiskRequestsTest, AReadFromADiskThatFails) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  hold_on_disk(f);
  device_->fail_reads(1);
  EXPECT_EQ(read(f, 0, 10), "EIO");
  tier().close();
  EXPECT_EQ(read(f, 0, 10), "ESHUTDOWN");
}

TEST_F(DiskRequestsTest, HolesAreFoundOnTheDisk) {
  attach_disk();
  const uint64_t f = store("f", std::string(3 * kUnitBytes, 'x'));
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_DATA), 5u) << "in memory";
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_HOLE), 3 * kUnitBytes);
  make_cold(f);
  EXPECT_EQ(seek_fails_with(f, 0, SEEK_DATA), EIO) << "nobody has it open from there";
  {
    EntryTable::Shard& its_shard = shard(f);
    MutexLock lock(its_shard.mutex);
    CatalogContent& held = its_shard.held[f];
    held = its_shard.copies.at(f);
    held.extents = {{held.extents[0].start, 1}, {0, 1}, {held.extents[0].start + 2, 1}};
  }
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_DATA), 5u);
  EXPECT_EQ(*requests_->seek_on_disk(f, 5, SEEK_HOLE), kUnitBytes);
  EXPECT_EQ(*requests_->seek_on_disk(f, kUnitBytes, SEEK_DATA), 2 * kUnitBytes);
  EXPECT_EQ(seek_fails_with(f, 3 * kUnitBytes, SEEK_DATA), ENXIO);
  EXPECT_EQ(seek_fails_with(4711, 0, SEEK_DATA), ESTALE);
}

TEST_F(DiskRequestsTest, ASyncEndsWithTheCommit) {
  attach_disk();
  const uint64_t f = store("f", pattern(1, kBlock));
  sync(f);
  ASSERT_TRUE(spill_until([&] { return state(f).tier == Entry::Tier::kClean; }));
  EXPECT_EQ(told(), kToldNothing);
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_TRUE(is_durable("f"));
  make_cold(f);
  sync(f);
  EXPECT_EQ(told(), kToldNothing) << "what the catalog was told before may be under way";
  EXPECT_EQ(outcome(), kToldWell);
  sync(make_known_directory("d"));
  EXPECT_EQ(outcome(), kToldWell);
  sync(4711);
  EXPECT_EQ(outcome(), kToldWell);
}

TEST_F(DiskRequestsTest, ASyncThatCannotBeHadFails) {
  attach_disk();
  const uint64_t f = store("f");
  device_->fail_writes(1);
  sync(f);
  EXPECT_EQ(outcome(), EIO);
  device_->fail_flushes(1);
  sync(f);
  EXPECT_EQ(outcome(), EIO);
  sync(store("g"));
  EXPECT_EQ(outcome(), EIO) << "the disk gets nothing more";
  tier().close();
  sync(f);
  EXPECT_EQ(told(), ESHUTDOWN);
}

// An fsync's: the kernel lets no client write the file meanwhile.
TEST_F(DiskRequestsTest, ASyncOfAnOpenFileCopiesWhatItIsNow) {
  supervise();
  attach_disk();
  const uint64_t f = create("f");
  write("f", pattern(1, kBlock));
  const UniqueFd writer = open("f");
  sync(f);
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_TRUE(is_durable("f"));
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty) << "it may be written on";
  const auto mark = copy_mark_of(writer.get());
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->node_id, state(f).node_id);
}

TEST_F(DiskRequestsTest, ACloseIsNotDurableIfTheFileWasOpenedWithoutANumber) {
  supervise();
  attach_disk(Durability::kSync);
  const uint64_t f = create("f");
  const UniqueFd writer = open("f");
  sync(f, false);
  EXPECT_EQ(told(), EIO);
  backing_.daemon_io = true;
  sync(f, false);
  EXPECT_EQ(outcome(), kToldWell) << "there it can be numbered now";
  backing_.daemon_io = false;
  const uint64_t g = create("g");
  ASSERT_TRUE(marks_->number(entry(g), open("g").get()));
  sync(g, false);
  EXPECT_EQ(outcome(), kToldWell);
}

TEST_F(DiskRequestsTest, ANamelessFileThatWasSyncedIsDurableWithItsName) {
  supervise();
  attach_disk();
  const Nameless f = create_nameless();
  sync(f.ino);
  EXPECT_FALSE(state(f.ino).spill_queued) << "the catalog has no file without a name";
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_TRUE(state(f.ino).synced_nameless);
  EXPECT_TRUE(mark_of(f).synced_nameless);
  EXPECT_NE(mark_of(f).node_id, 0u);
}

TEST_F(DiskRequestsTest, AFailedSyncLeavesWhatAnEarlierOneHasPromised) {
  supervise();
  attach_disk();
  const Nameless f = create_nameless();
  {
    const test::NoMarks unprivileged;
    sync(f.ino);
    EXPECT_EQ(told(), EPERM);
  }
  EXPECT_FALSE(state(f.ino).synced_nameless);
  sync(f.ino);
  EXPECT_EQ(outcome(), kToldWell);
  set_first_version(f.ino, 1);
  const test::NoMarks unprivileged;
  sync(f.ino);
  EXPECT_EQ(told(), EPERM);
  EXPECT_TRUE(state(f.ino).synced_nameless);
}

TEST_F(DiskRequestsTest, ARenameMakesTheFileOfThatNameDurable) {
  attach_disk();
  const uint64_t f = store("f");
  (void)make_known_directory("d");
  requests_->sync_name(root(), "d", waiter());
  EXPECT_EQ(outcome(), kToldWell);
  requests_->sync_name(root(), "none", waiter());
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
  requests_->sync_name(root(), "f", waiter());
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
}

TEST_F(DiskRequestsTest, ADirectorysSyncIsForWhatIsClosedInIt) {
  attach_disk();
  const uint64_t d = make_known_directory("d");
  make_directory("d/below");
  const uint64_t closed = store("d/closed");
  const uint64_t written = create("d/written");
  const uint64_t flushed = create("d/flushed");
  set_flushed(flushed);
  const uint64_t forked = create("d/forked");
  set_flushed(forked);
  const UniqueFd copy_of_descriptor = open("d/forked");
  const uint64_t elsewhere = store("elsewhere");
  requests_->sync_directory(d, waiter());
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_EQ(state(closed).tier, Entry::Tier::kClean);
  EXPECT_NE(state(flushed).node_id, 0u) << "its last close is on its way";
  EXPECT_EQ(state(written).node_id, 0u);
  EXPECT_EQ(state(forked).node_id, 0u) << "the closed descriptor was a copy";
  EXPECT_EQ(state(elsewhere).node_id, 0u);
  const uint64_t its_id = catalogued("d");
  EXPECT_NE(its_id, 0u);
  EXPECT_TRUE(tier().store->catalog().lookup(its_id, "below").value());
}

// The kernel tells of it some time after the close.
TEST_F(DiskRequestsTest, ADirectorysSyncDoesNotWaitForALastClose) {
  supervise();
  attach_disk();
  const uint64_t d = make_known_directory("d");
  const uint64_t f = create("d/f");
  write("d/f", pattern(1, kBlock));
  set_flushed(f);
  requests_->sync_directory(d, waiter());
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
  EXPECT_TRUE(tier().store->catalog().content(state(f).node_id).value());
  const auto mark = copy_mark_of(open("d/f").get());
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->node_id, state(f).node_id) << "or a successor would drop it";
}

TEST_F(DiskRequestsTest, AnEmptyDirectorysSyncIsForItself) {
  attach_disk();
  requests_->sync_directory(make_known_directory("d"), waiter());
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_TRUE(is_durable("d"));
}

TEST_F(DiskRequestsTest, WhatCannotBeSyncedAsADirectory) {
  attach_disk();
  requests_->sync_directory(4711, waiter());
  EXPECT_EQ(told(), ESTALE);
  requests_->sync_directory(store("f"), waiter());
  EXPECT_EQ(told(), ENOTDIR);
}

TEST_F(DiskRequestsTest, TheRootsSyncIsForTheWholePool) {
  attach_disk();
  make_directory("d");
  ASSERT_EQ(::symlinkat("target", root(), "s"), 0);
  const uint64_t f = store("d/f");
  const uint64_t g = store_fresh("g");
  requests_->sync_directory(root_ino(), waiter());
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_EQ(state(g).tier, Entry::Tier::kClean);
  EXPECT_TRUE(is_durable("d") && is_durable("s"));
}

TEST_F(DiskRequestsTest, ADirectorysSyncFailsIfOneOfItsFilesCannotBeCopied) {
  attach_disk();
  const uint64_t d = make_known_directory("d");
  (void)store("d/f");
  (void)store("d/g");
  device_->fail_writes(1);
  requests_->sync_directory(d, waiter());
  EXPECT_EQ(outcome(), EIO);
}

TEST_F(DiskRequestsTest, WithDurabilityAllThatIsStoredGoesToTheDisk) {
  attach_disk();
  const uint64_t f = store("f");
  const uint64_t fresh = store_fresh("fresh");
  const uint64_t written = create("written");
  requests_->spill_all();
  EXPECT_EQ(state(fresh).stage, Entry::Stage::kFresh);
  EXPECT_FALSE(state(f).spill_queued);
  (void)disk_->exchange_durability(Durability::kWriteback);
  requests_->spill_all();
  EXPECT_EQ(state(fresh).stage, Entry::Stage::kCandidate);
  EXPECT_TRUE(state(f).spill_queued && state(fresh).spill_queued);
  EXPECT_FALSE(state(written).spill_queued);
  const uint64_t backlog_bytes = tier().spiller.backlog_bytes();
  requests_->spill_all();
  EXPECT_GT(tier().spiller.backlog_bytes(), backlog_bytes) << "the spiller may keep it for later";
}

TEST_F(DiskRequestsTest, OneScrubRunsAtATime) {
  attach_disk();
  ASSERT_TRUE(requests_->start_scrub(1));
  EXPECT_TRUE(requests_->scrub_progress().running);
  const auto second = requests_->start_scrub(1);
  ASSERT_EQ(code_of(second), EBUSY);
  EXPECT_TRUE(second.error().message.starts_with("pool p: ")) << second.error().message;
  ASSERT_TRUE(requests_->stop_scrub());
  EXPECT_FALSE(requests_->scrub_progress().running);
}

}  // namespace
}  // namespace kvcachefs
