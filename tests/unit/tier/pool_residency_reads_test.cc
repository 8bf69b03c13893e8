// Entries that are read from the disk: to be promoted, and to be verified.
#include <gtest/gtest.h>

#include <algorithm>
#include <cerrno>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"
#include "tier/pool/pool_residency.h"

namespace kvcachefs::pool_residency_reads_test {

constexpr Finding kWrongBytes{Finding::Kind::kWrongBytes};
constexpr Finding kUnreadable{Finding::Kind::kUnreadable, EIO};

class PoolResidencyReadsTest : public test::PoolPartsTest {
 protected:
  PoolResidencyReadsTest() : PoolPartsTest(Upto::kResidency) {}
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    attach_disk();
  }
  PromoteTask promotion(uint64_t its) {
    auto task = residency_->begin_promote(its);
    EXPECT_TRUE(task && *task);
    return task && *task ? std::move(**task) : PromoteTask{};
  }
  bool can_be_promoted(uint64_t its) {
    const auto task = residency_->begin_promote(its);
    EXPECT_TRUE(task);
    return task && task->has_value();
  }
  void unlink(const std::string& name) { ASSERT_TRUE(tree_->remove(root(), name.c_str(), false)); }
  // The answer to a scrubber that has found this of the entry's copy.
  bool end_verify(uint64_t its, Finding finding) {
    const auto content = residency_->begin_verify(its);
    EXPECT_TRUE(content);
    return content && residency_->end_verify(its, *content, finding);
  }
  uint64_t used_units() const {
    return disk_->tier()->store->space().units() - disk_->tier()->store->space().free_units();
  }

  const std::string bytes_ = test::pattern(1, kUnitBytes + 100);
};

TEST_F(PoolResidencyReadsTest, WhatCannotBePromoted) {
  const uint64_t f = store("f");
  EXPECT_FALSE(can_be_promoted(4711));
  EXPECT_FALSE(can_be_promoted(f)) << "it is in memory";
  make_cold(f);
  EXPECT_TRUE(can_be_promoted(f));
  EXPECT_TRUE(state(f).promoting);
  EXPECT_FALSE(can_be_promoted(f)) << "it is on its way";
  const uint64_t g = store("g");
  make_cold(g);
  set_lookups(g, 1);
  unlink("g");
  EXPECT_FALSE(can_be_promoted(g)) << "it stays where it is";
}

TEST_F(PoolResidencyReadsTest, APromotedEntryIsCleanAndItsUsersSeeNoChange) {
  const uint64_t f = store("f", bytes_);
  ASSERT_TRUE(inodes_->set_times(f, {timespec{11, 0}, timespec{22, 0}}));
  const struct stat before = status("f");
  make_cold(f);
  const PromoteTask task = promotion(f);
  EXPECT_EQ(task.content.extents, copy(f)->extents);
  ASSERT_TRUE(sys::write_at(task.fd.get(), bytes_.substr(0, kBlock), 0));
  EXPECT_EQ(inodes_->attributes(f)->st_mtim.tv_sec, 22) << "also meanwhile";
  residency_->end_promote(task, {PromoteOutcome::Kind::kPromoted}, true);
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_FALSE(state(f).promoting);
  EXPECT_LT(state(f).charged_bytes, 3 * kBlock) << "a part was written";
  EXPECT_EQ(counters_.promotes, 1u);
  EXPECT_EQ(counters_.promoted_bytes, bytes_.size());
  const struct stat after = status("f");
  EXPECT_EQ(after.st_mtim.tv_sec, 22);
  EXPECT_EQ(inodes_->attributes(f)->st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  EXPECT_FALSE(entry(f).evictable()) << "its waiters have not looked yet";
  residency_->waiters_told(f);
  EXPECT_TRUE(entry(f).evictable());
  residency_->waiters_told(4711);
}

TEST_F(PoolResidencyReadsTest, AnEntryThatIsNotPromotedStaysCold) {
  const uint64_t f = store("f", bytes_);
  make_cold(f);
  for (const auto kind : {PromoteOutcome::Kind::kIntactOnDisk, PromoteOutcome::Kind::kNoMemory}) {
    const PromoteTask task = promotion(f);
    ASSERT_TRUE(sys::write_at(task.fd.get(), bytes_, 0));
    residency_->end_promote(task, {kind}, true);
    EXPECT_EQ(state(f).tier, Entry::Tier::kCold);
    EXPECT_FALSE(state(f).promoting);
    EXPECT_EQ(status("f").st_blocks, 0) << "a part of its bytes is no content";
  }
  EXPECT_EQ(counters_.promote_errors, 0u);
}

TEST_F(PoolResidencyReadsTest, AColdEntryWithADamagedCopyIsDiscarded) {
  const uint64_t f = store("f", bytes_);
  make_cold(f);
  set_lookups(f, 1);
  residency_->end_promote(promotion(f), {PromoteOutcome::Kind::kFailed, kUnreadable}, true);
  EXPECT_TRUE(is_there("f")) << "it may be read later";
  EXPECT_EQ(counters_.checksum_errors, 0u);
  residency_->end_promote(promotion(f), {PromoteOutcome::Kind::kFailed, kWrongBytes}, true);
  EXPECT_FALSE(is_there("f"));
  EXPECT_TRUE(state(f).removed);
  EXPECT_EQ(heard_.gone.size(), 1u);
  EXPECT_EQ(counters_.promote_errors, 2u);
  EXPECT_EQ(counters_.checksum_errors, 1u);
}

TEST_F(PoolResidencyReadsTest, AnEntryThatIsRemovedWhileItIsPromotedIsNotBroughtBack) {
  const uint64_t f = store("f", bytes_);
  make_cold(f);
  set_lookups(f, 1);
  const PromoteTask task = promotion(f);
  unlink("f");
  residency_->end_promote(task, {PromoteOutcome::Kind::kPromoted}, true);
  EXPECT_EQ(state(f).tier, Entry::Tier::kCold);
  EXPECT_EQ(counters_.promotes, 0u);
  const uint64_t g = store("g", bytes_);
  make_cold(g);
  const PromoteTask other = promotion(g);
  unlink("g");
  EXPECT_FALSE(state(g).exists);
  residency_->end_promote(other, {PromoteOutcome::Kind::kFailed, kWrongBytes}, true);
}

TEST_F(PoolResidencyReadsTest, CopiesThatAreTrueAreVerified) {
  const uint64_t dirty = store("dirty");
  make_clean(dirty);
  marks_->became_dirty(entry(dirty), open("dirty").get());
  const uint64_t clean = store("clean");
  make_clean(clean);
  const uint64_t cold = store("cold");
  make_cold(cold);
  auto all = residency_->copied_entries();
  std::ranges::sort(all);
  EXPECT_EQ(all, (std::vector<uint64_t>{clean, cold}));
  EXPECT_FALSE(residency_->begin_verify(dirty));
  EXPECT_FALSE(residency_->begin_verify(4711));
  const auto content = residency_->begin_verify(cold);
  ASSERT_TRUE(content);
  unlink("cold");
  commit();
  const uint64_t used_before = used_units();
  EXPECT_FALSE(residency_->end_verify(cold, *content, kWrongBytes)) << "the entry is gone";
  EXPECT_EQ(used_units(), used_before - 1) << "its bytes stayed until they were read";
}

TEST_F(PoolResidencyReadsTest, ACleanEntryWithABadCopyIsWrittenAgain) {
  for (const Finding finding : {kWrongBytes, kUnreadable}) {
    const std::string name = finding.is_damage() ? "wrong" : "unreadable";
    const uint64_t f = store(name, bytes_);
    make_clean(f);
    const auto before = copy(f);
    EXPECT_FALSE(end_verify(f, {}));
    EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
    EXPECT_EQ(end_verify(f, finding), finding.is_damage());
    EXPECT_EQ(state(f).tier, Entry::Tier::kDirty);
    EXPECT_TRUE(state(f).spill_urgent);
    EXPECT_TRUE(work_until([&] { return state(f).tier == Entry::Tier::kClean; }));
    EXPECT_NE(copy(f)->extents, before->extents);
  }
  EXPECT_EQ(counters_.checksum_errors, 1u);
}

TEST_F(PoolResidencyReadsTest, AColdEntryWithABadCopyIsDiscardedIfItIsDamaged) {
  const uint64_t f = store("f", bytes_);
  make_cold(f);
  EXPECT_FALSE(end_verify(f, kUnreadable));
  EXPECT_TRUE(is_there("f"));
  const PromoteTask task = promotion(f);
  EXPECT_TRUE(end_verify(f, kWrongBytes));
  EXPECT_TRUE(is_there("f")) << "its promotion finds the same";
  residency_->end_promote(task, {PromoteOutcome::Kind::kNoMemory}, true);
  EXPECT_TRUE(end_verify(f, kWrongBytes));
  EXPECT_FALSE(is_there("f"));
  EXPECT_FALSE(state(f).exists);
}

TEST_F(PoolResidencyReadsTest, AVerdictOfAnOlderCopyCountsForNothing) {
  const uint64_t f = store("f", bytes_);
  make_clean(f);
  const auto older = residency_->begin_verify(f);
  ASSERT_TRUE(older);
  marks_->became_dirty(entry(f), open("f").get());
  write("f", "other");
  make_clean(f);
  EXPECT_FALSE(residency_->end_verify(f, *older, kWrongBytes));
  EXPECT_EQ(state(f).tier, Entry::Tier::kClean);
  EXPECT_EQ(counters_.checksum_errors, 0u);
}

}  // namespace kvcachefs::pool_residency_reads_test
