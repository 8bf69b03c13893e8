// Entries on their way to the disk; pool_residency_reads_test.cc has those that come from there.
#include "tier/pool/pool_residency.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/xattr.h>

#include "tests/support/catalogs.h"
#include "tests/support/files.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::pool_residency_test {

using test::pattern;
using Kind = SpillOutcome::Kind;
using Refusal = Residency::Refusal;

constexpr Finding kWrongBytes{Finding::Kind::kWrongBytes};

class PoolResidencyTest : public test::PoolPartsTest {
 protected:
  PoolResidencyTest() : PoolPartsTest(Upto::kResidency) {}
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    attach_disk();
  }
  std::expected<SpillTask, Refusal> begin(uint64_t its, bool urgent = false) {
    return residency_->begin_spill(its, urgent);
  }
  std::optional<Refusal> refusal(uint64_t its, bool urgent = false) {
    const auto task = begin(its, urgent);
    return task ? std::nullopt : std::optional(task.error());
  }
  // A copy that the disk took. What nothing names is given back, as the spiller does.
  bool end(const SpillTask& task, const std::string& bytes, Kind kind = Kind::kCopied) {
    CatalogContent content = put(bytes);
    content.version = task.version;
    const std::vector<Extent> extents = content.extents;
    const bool taken = residency_->end_spill(task, {.kind = kind, .content = std::move(content)});
    if (!taken) tier().store->give_back(extents);
    return taken;
  }
  bool end(const SpillTask& task, Kind kind) { return residency_->end_spill(task, {.kind = kind}); }
  // As an order to evict leaves it.
  void queue(uint64_t its) {
    entries_.park(entry(its));
    disk_->queue_spill(entry(its));
    ASSERT_TRUE(state(its).spill_queued);
  }
  uint64_t used_units() const {
    return disk_->tier()->store->space().units() - disk_->tier()->store->space().free_units();
  }
  void unlink(const std::string& name) { ASSERT_TRUE(tree_->remove(root(), name.c_str(), false)); }
  bool is_victim(uint64_t its) {
    const auto victim = entries_.candidates().next_victim(false);
    return victim && victim->ino == its;
  }

  const std::string bytes_ = pattern(1, kUnitBytes + 100);
};

TEST_F(PoolResidencyTest, ACopyOfASettledFileIsProven) {
  const uint64_t f = store("f", bytes_);
  auto task = begin(f);
  ASSERT_TRUE(task);
  EXPECT_EQ(task->ino, f);
  EXPECT_EQ(task->size_bytes, bytes_.size());
  EXPECT_EQ(task->version, 1u);
  EXPECT_TRUE(task->proven && task->mappable);
  EXPECT_FALSE(task->before);
  EXPECT_TRUE(state(f).spilling);
  EXPECT_EQ(test::read_at(task->fd.get(), 0, bytes_.size()), bytes_);
  EXPECT_EQ(refusal(f), Refusal::kSoon) << "another copy is under way";
  EXPECT_TRUE(end(*task, bytes_));
  EXPECT_FALSE(state(f).spilling);
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_EQ(copy(f)->size_bytes, bytes_.size());
  EXPECT_EQ(counters_.spills, 1u);
  EXPECT_EQ(counters_.spilled_bytes, bytes_.size());
  EXPECT_EQ(catalogued("f"), state(f).node_id);
  const auto content = test::content_in(tier().store->catalog(), state(f).node_id);
  ASSERT_TRUE(content);
  EXPECT_EQ(content->extents, copy(f)->extents);
}

TEST_F(PoolResidencyTest, WhatNeedsNoCopyIsNoLongerQueued) {
  const uint64_t f = store("f");
  queue(f);
  make_clean(f);
  EXPECT_EQ(refusal(f), Refusal::kNever);
  EXPECT_FALSE(state(f).spill_queued);
  EXPECT_TRUE(is_victim(f)) << "it was parked for the copy";
  EXPECT_EQ(refusal(4711), Refusal::kNever);
  const uint64_t g = store("g");
  set_lookups(g, 1);
  queue(g);
  unlink("g");
  EXPECT_EQ(refusal(g, true), Refusal::kNever);
  EXPECT_FALSE(state(g).spill_queued);
  const uint64_t written = create("written");
  EXPECT_EQ(refusal(written), Refusal::kNever) << "its last close asks for it";
}

TEST_F(PoolResidencyTest, ADiskThatGetsNothingMoreGetsNoCopy) {
  const uint64_t f = store("f");
  queue(f);
  make_clean(store("g"));
  device_->fail_flushes(1);
  commit();
  EXPECT_EQ(refusal(f, true), Refusal::kNever);
  EXPECT_FALSE(state(f).spill_queued);
}

TEST_F(PoolResidencyTest, AFileThatMayBeWrittenIsCopiedLater) {
  const uint64_t f = store("f", bytes_);
  std::optional<test::Mapping> mapping;
  mapping.emplace(open("f").get(), kBlock, PROT_READ | PROT_WRITE, MAP_SHARED);
  EXPECT_EQ(refusal(f), Refusal::kLater);
  EXPECT_FALSE(state(f).spilling);
  {
    const auto snapshot = begin(f, true);
    ASSERT_TRUE(snapshot) << "a waiter gets one of what it is now";
    EXPECT_FALSE(snapshot->proven || snapshot->mappable);
    EXPECT_TRUE(end(*snapshot, bytes_));
    EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
    EXPECT_TRUE(copy(f)) << "the disk has an older content";
  }
  mapping.reset();
  const auto task = begin(f);
  ASSERT_TRUE(task);
  EXPECT_TRUE(task->proven);
  EXPECT_TRUE(task->before);
}

TEST_F(PoolResidencyTest, InDaemonIoTheCountsOfOpensAreTheProof) {
  backing_.daemon_io = true;
  const uint64_t f = store("f");
  const UniqueFd of_a_reader = open("f");  // the daemon's own, for reads and writes
  open_entry(f);
  const auto task = begin(f);
  ASSERT_TRUE(task);
  EXPECT_TRUE(task->proven);
}

TEST_F(PoolResidencyTest, AFileWithHolesIsNotRead) {
  const uint64_t f = create("f");
  write("f", "x", 3 * kUnitBytes);
  close_entry(f, {.writer = true});
  const auto task = begin(f);
  ASSERT_TRUE(task);
  EXPECT_TRUE(task->proven);
  EXPECT_FALSE(task->mappable) << "to read a hole by a mapping fills it";
}

TEST_F(PoolResidencyTest, ReservedMemoryIsGivenBackBeforeTheCopy) {
  capacity_->set_entry_size(kMiB);
  const uint64_t f = create("f");
  set_wants_reservation(f);
  reservations_->begin_writing(f);
  write("f", "x", kMiB - 1);
  close_with_holes(f);
  ASSERT_GT(state(f).reserved_end, 0u);
  const auto task = begin(f);
  ASSERT_TRUE(task);
  EXPECT_EQ(state(f).reserved_end, 0u);
  EXPECT_FALSE(task->mappable);
}

TEST_F(PoolResidencyTest, ACopyOfWhatWasWrittenMeanwhileIsVoid) {
  const uint64_t f = store("f", bytes_);
  const auto task = begin(f);
  ASSERT_TRUE(task);
  marks_->became_dirty(entry(f), -1);
  const uint64_t used_before = used_units();
  EXPECT_FALSE(end(*task, bytes_));
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
  EXPECT_FALSE(copy(f));
  EXPECT_EQ(used_units(), used_before);
  EXPECT_EQ(catalogued("f"), 0u);
  EXPECT_EQ(counters_.spills, 0u);

  const auto second = begin(f);
  ASSERT_TRUE(second);
  open_entry(f, {.writer = true});
  EXPECT_FALSE(end(*second, bytes_));
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
}

TEST_F(PoolResidencyTest, ASnapshotFromBeforeATruncationIsVoid) {
  const uint64_t f = store("f", bytes_);
  make_clean(f);
  marks_->became_dirty(entry(f), open("f").get());
  open_entry(f, {.writer = true});
  const auto snapshot = begin(f, true);
  ASSERT_TRUE(snapshot);
  marks_->became_dirty(entry(f), -1);
  set_emptied(f);
  EXPECT_FALSE(end(*snapshot, bytes_));
  const auto later = begin(f, true);
  ASSERT_TRUE(later);
  EXPECT_TRUE(end(*later, bytes_));
  EXPECT_FALSE(state(f).emptied) << "the catalog has its new content";
}

TEST_F(PoolResidencyTest, ACopyIsTakenOnlyForAnEntryWithAName) {
  EXPECT_FALSE(end(SpillTask{.ino = 4711, .fd = {}, .before = {}}, bytes_));
  const uint64_t f = store("f", bytes_);
  make_clean(f);
  marks_->became_dirty(entry(f), open("f").get());
  set_lookups(f, 1);
  auto task = begin(f);
  ASSERT_TRUE(task);
  unlink("f");
  EXPECT_FALSE(end(*task, bytes_));
  EXPECT_FALSE(copy(f));
  const uint64_t g = store("g", bytes_);
  task = begin(g);
  ASSERT_TRUE(task);
  ASSERT_EQ(::unlinkat(root(), "g", 0), 0);  // its removal has not got the shard yet
  EXPECT_FALSE(end(*task, bytes_));
  EXPECT_EQ(state(g).tier, Entry::Tier::kDirty);
}

TEST_F(PoolResidencyTest, ASnapshotUnderASupervisorHasANumber) {
  supervise();
  const uint64_t f = create("f");
  const UniqueFd writer = open("f");
  EXPECT_EQ(refusal(f, true), Refusal::kLater) << "a write that stalls may keep its mark from being written";
  ASSERT_TRUE(marks_->number(entry(f), writer.get()));
  const auto snapshot = begin(f, true);
  ASSERT_TRUE(snapshot);
  set_first_version(f, 5);
  EXPECT_FALSE(end(*snapshot, bytes_)) << "it was cut meanwhile";
  EXPECT_EQ(refusal(f, true), Refusal::kLater);
  ASSERT_TRUE(marks_->number(entry(f), writer.get()));
  const auto numbered = begin(f, true);
  ASSERT_TRUE(numbered);
  EXPECT_TRUE(end(*numbered, bytes_));
  EXPECT_EQ(copy_mark_of(writer.get())->first_version, 5u);
}

TEST_F(PoolResidencyTest, ACopyThatIsStillTrueIsPutForItsVersionAlone) {
  const uint64_t f = store("f", bytes_);
  make_clean(f);
  const CatalogContent before = *copy(f);
  marks_->became_dirty(entry(f), open("f").get());
  commit();
  const auto task = begin(f);
  ASSERT_TRUE(task && task->before);
  CatalogContent same = *task->before;
  same.version = 7;
  EXPECT_TRUE(residency_->end_spill(*task, {.kind = Kind::kUnchanged, .content = same}));
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_EQ(counters_.spills, 0u);
  commit();
  EXPECT_EQ(used_units(), 1u + 2) << "the superblock's, and its own";
  EXPECT_EQ(copy(f)->extents, before.extents);
  EXPECT_EQ(test::content_in(tier().store->catalog(), state(f).node_id)->version, 7u)
      << "or it would be older than a truncation that came before it";
}

TEST_F(PoolResidencyTest, ACopyThatWasFoundDamagedMeanwhileIsNotStillTrue) {
  const uint64_t f = store("f", bytes_);
  make_clean(f);
  marks_->became_dirty(entry(f), open("f").get());
  const auto task = begin(f);
  ASSERT_TRUE(task);
  const auto content = *copy(f);
  tier().store->hold(content);
  EXPECT_TRUE(residency_->end_verify(f, content, kWrongBytes));
  EXPECT_FALSE(residency_->end_spill(*task, {.kind = Kind::kUnchanged, .content = *task->before}));
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
}

TEST_F(PoolResidencyTest, WhatBecomesOfACopyThatWasNotMade) {
  const uint64_t f = store("f");
  const auto outcome = [&](Kind kind) {
    queue(f);
    const auto task = begin(f);
    EXPECT_TRUE(task && !end(*task, kind));
    EXPECT_FALSE(state(f).spilling);
    return state(f).spill_queued;
  };
  EXPECT_TRUE(outcome(Kind::kAgain)) << "the spiller keeps the request";
  EXPECT_EQ(counters_.spill_errors, 0u);
  EXPECT_TRUE(state(f).parked);
  EXPECT_TRUE(outcome(Kind::kRefused)) << "and tries again";
  EXPECT_EQ(counters_.spill_errors, 1u);
  set_spill_queued(f, false);
  EXPECT_FALSE(outcome(Kind::kBusy));
  EXPECT_EQ(counters_.spill_errors, 1u) << "the disk failed in nothing";
  EXPECT_EQ(counters_.spills_not_made, 1u);
  EXPECT_TRUE(is_victim(f)) << "it may go otherwise";
  EXPECT_FALSE(entry(f).disk.is_unspillable());
  EXPECT_FALSE(outcome(Kind::kNoRoom));
  EXPECT_TRUE(entry(f).disk.is_unspillable()) << "the disk is not asked for it for a while";
}

// Its xattrs cannot be listed. One copy shows that; no other is made, whatever the pressure, until it is
// mended.
TEST_F(PoolResidencyTest, WhatTheCatalogCannotDescribeIsCopiedOnce) {
  const uint64_t f = store("f", bytes_);
  auto task = begin(f);
  ASSERT_TRUE(task);
  const UniqueFd file = open("f", O_RDONLY);
  const auto name = [](int i) { return "user." + std::string(246, 'n') + std::to_string(1000 + i); };
  constexpr int kNames = 300;  // more than 64 KiB
  for (int i = 0; i < kNames; ++i) ASSERT_EQ(::fsetxattr(file.get(), name(i).c_str(), "", 0, 0), 0) << i;
  EXPECT_FALSE(end(*task, bytes_));
  EXPECT_EQ(counters_.spill_errors, 0u);
  EXPECT_EQ(counters_.spills_not_made, 1u);
  EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
  EXPECT_TRUE(entry(f).disk.is_unspillable());
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(refusal(f, i == 1), Refusal::kCannot);
    EXPECT_FALSE(state(f).spilling);
    EXPECT_TRUE(entry(f).disk.is_unspillable());
  }
  for (int i = 0; i < kNames; ++i) ASSERT_EQ(::fremovexattr(file.get(), name(i).c_str()), 0);
  task = begin(f);
  ASSERT_TRUE(task);
  EXPECT_TRUE(end(*task, bytes_));
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
}

TEST_F(PoolResidencyTest, WithDurabilityASnapshotIsFollowedByACopy) {
  (void)disk_->exchange_durability(Durability::kWriteback);
  const uint64_t f = store("f", bytes_);
  const test::Mapping mapping(open("f").get(), kBlock, PROT_READ | PROT_WRITE, MAP_SHARED);
  const auto snapshot = begin(f, true);
  ASSERT_TRUE(snapshot);
  set_spill_queued(f, false);
  EXPECT_TRUE(end(*snapshot, bytes_));
  EXPECT_TRUE(state(f).spill_queued);
}

TEST_F(PoolResidencyTest, ASuccessorKnowsOfACopy) {
  supervise();
  const uint64_t f = store("f", bytes_);
  const auto task = begin(f);
  ASSERT_TRUE(task && end(*task, bytes_));
  const auto mark = copy_mark_of(open("f").get());
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->state, CopyMark::State::kClean);
  EXPECT_EQ(mark->node_id, state(f).node_id);
  EXPECT_EQ(mark->content.extents, copy(f)->extents);
}

TEST_F(PoolResidencyTest, WhatTheMoversAskOfThePool) {
  residency_->want_disk_room(3 * kUnitBytes);
  residency_->want_disk_room(kUnitBytes);
  EXPECT_EQ(disk_->take_wanted_bytes(), 3 * kUnitBytes);
  EXPECT_EQ(residency_->memory_bytes(), kPoolBytes);
  EXPECT_EQ(residency_->free_bytes(true), arena_->usage().free_bytes);
  ASSERT_TRUE(capacity_->admit_writer(store("f"), 0));
  EXPECT_EQ(residency_->free_bytes(false), arena_->usage().free_bytes - kPoolBytes / 2);
}

}  // namespace kvcachefs::pool_residency_test
