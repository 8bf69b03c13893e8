#include "tier/pool/disk_requests.h"

#include <gtest/gtest.h>

#include <cerrno>

#include "tests/support/catalogs.h"
#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::disk_requests_test {

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
  static CopyMark mark_of(const Nameless& nameless) {
    const auto mark = copy_mark_of(nameless.file.get());
    EXPECT_TRUE(mark);
    return mark.value_or(CopyMark());
  }
};

TEST_F(DiskRequestsTest, WithoutADiskNothingIsWaitedFor) {
  const uint64_t f = store("f");
  sync(f);
  EXPECT_EQ(told(), kToldWell);
  requests_->sync_directory(root_ino(), waiter());
  EXPECT_EQ(told(), kToldWell);
  requests_->sync_name(root(), "f", waiter());
  EXPECT_EQ(told(), kToldWell);
  requests_->spill_all();
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
  const uint64_t f = store("f");
  (void)lose_disk(std::chrono::hours(0));
  sync(f);
  EXPECT_EQ(told(), EIO);
  requests_->sync_directory(root_ino(), waiter());
  EXPECT_EQ(told(), EIO);
  EXPECT_EQ(code_of(requests_->start_scrub(1)), EIO);
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
  EXPECT_TRUE(test::id_in(tier().store->catalog(), its_id, "below"));
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
  EXPECT_TRUE(test::content_in(tier().store->catalog(), state(f).node_id));
  const auto mark = copy_mark_of(open("d/f").get());
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->node_id, state(f).node_id) << "or a successor would drop it";
}

// A mapping may write it for as long as its user likes, and is not to hold up others' syncs.
TEST_F(DiskRequestsTest, ADirectorysSyncCopiesWhatAMappingMayWrite) {
  supervise();
  attach_disk();
  const uint64_t d = make_known_directory("d");
  const uint64_t f = store("d/f");
  const UniqueFd mapped = open("d/f");
  requests_->sync_directory(d, waiter());
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
  EXPECT_TRUE(test::content_in(tier().store->catalog(), state(f).node_id));
}

TEST_F(DiskRequestsTest, ADirectorysSyncCopiesWhatAWriterHasOpenedMeanwhile) {
  supervise();
  attach_disk();
  const uint64_t d = make_known_directory("d");
  const uint64_t f = store("d/f");
  requests_->sync_directory(d, waiter());
  open_entry(f, {.writer = true});
  const UniqueFd writer = open("d/f");
  EXPECT_EQ(outcome(), kToldWell);
  EXPECT_TRUE(test::content_in(tier().store->catalog(), state(f).node_id));
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

}  // namespace kvcachefs::disk_requests_test
