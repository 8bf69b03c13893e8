// The scrubber between a disk in memory and a pool that is a list of copies: what it finds, and when it ends.
#include "tier/disk/scrubber.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <map>
#include <string>

#include "tests/support/files.h"
#include "tests/support/idle_residency.h"
#include "tests/support/mount.h"
#include "tests/support/small_store.h"

namespace kvcachefs::scrubber_test {

using test::SmallStore;

constexpr uint64_t kUnitBytes = SmallStore::kUnitBytes;
using Kind = Finding::Kind;
using Verdicts = std::map<uint64_t, Kind>;

constexpr uint64_t kFast = UINT64_MAX;

class Copies final : public test::IdleResidency {
 public:
  std::vector<uint64_t> copied_entries() override {
    std::vector<uint64_t> inodes;
    for (const auto& [ino, content] : copies) inodes.push_back(ino);
    for (const uint64_t ino : gone) inodes.push_back(ino);
    return inodes;
  }
  std::optional<CatalogContent> begin_verify(uint64_t ino) override {
    const auto found = copies.find(ino);
    return found == copies.end() ? std::nullopt : std::optional(found->second);
  }
  bool end_verify(uint64_t ino, const CatalogContent&, Finding finding) override {
    verdicts[ino] = finding.kind;
    return finding.is_damage();
  }

  std::map<uint64_t, CatalogContent> copies;
  std::vector<uint64_t> gone;
  std::map<uint64_t, Finding::Kind> verdicts;
};

class ScrubberTest : public ::testing::Test {
 protected:
  void add(uint64_t count) {
    for (uint64_t ino = 1; ino <= count; ++ino)
      copies_.copies[ino] = store_.put(test::pattern(ino, kUnitBytes + 100));
  }
  void fail(uint64_t ino) {
    store_.disk().fail_place(copies_.copies[ino].extents[0].start * kUnitBytes, kUnitBytes);
  }
  ScrubProgress scrub() {
    EXPECT_TRUE(scrubber_.start(kFast));
    EXPECT_TRUE(test::eventually([&] {
      scrubber_.step(std::chrono::milliseconds(1));
      return !scrubber_.progress().running;
    }));
    return scrubber_.progress();
  }

  SmallStore store_;
  Copies copies_;
  Scrubber scrubber_{*store_, copies_, store_.channel()};
};

TEST_F(ScrubberTest, EachCopyIsReadOnce) {
  add(5);
  const ScrubProgress done = scrub();
  EXPECT_EQ(
      copies_.verdicts,
      (Verdicts{
          {1, Kind::kWhole}, {2, Kind::kWhole}, {3, Kind::kWhole}, {4, Kind::kWhole}, {5, Kind::kWhole}}));
  EXPECT_EQ(done.entries_total, 5u);
  EXPECT_EQ(done.entries_done, 5u);
  EXPECT_EQ(done.damaged, 0u);
  EXPECT_EQ(done.unreadable, 0u);
  EXPECT_GE(done.bytes, 5 * (kUnitBytes + 100));
  EXPECT_FALSE(done.stopped_by_errors);
}

TEST_F(ScrubberTest, DamageIsFoundAndToldFromWhatCannotBeRead) {
  add(5);
  store_.disk().rot(copies_.copies[2].extents[0].start * kUnitBytes, kUnitBytes);
  fail(4);
  const ScrubProgress done = scrub();
  EXPECT_EQ(copies_.verdicts, (Verdicts{{1, Kind::kWhole},
                                        {2, Kind::kWrongBytes},
                                        {3, Kind::kWhole},
                                        {4, Kind::kUnreadable},
                                        {5, Kind::kWhole}}));
  EXPECT_EQ(done.damaged, 1u);
  EXPECT_EQ(done.unreadable, 1u);
  EXPECT_FALSE(done.stopped_by_errors);
}

TEST_F(ScrubberTest, ADiskThatGivesNothingEndsIt) {
  add(10);
  for (uint64_t ino = 1; ino <= 10; ++ino) fail(ino);
  const ScrubProgress done = scrub();
  EXPECT_TRUE(done.stopped_by_errors);
  EXPECT_EQ(done.unreadable, 4u);
  EXPECT_EQ(copies_.verdicts.size(), 4u);
}

TEST_F(ScrubberTest, AnEntryThatHasGoneIsDone) {
  copies_.gone = {1, 2};
  const ScrubProgress done = scrub();
  EXPECT_EQ(done.entries_done, 2u);
  EXPECT_TRUE(copies_.verdicts.empty());
}

TEST_F(ScrubberTest, WithoutCopiesItEndsAtOnce) {
  EXPECT_EQ(scrub().entries_total, 0u);
}

TEST_F(ScrubberTest, OneRunsAtATimeAndCanBeStopped) {
  add(2);
  ASSERT_TRUE(scrubber_.start(1));
  const auto second = scrubber_.start(kFast);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EBUSY);
  scrubber_.step(SmallStore::kNow);
  EXPECT_EQ(store_.disk().counts().reads, 0u) << "a byte a second allows none yet";
  scrubber_.stop();
  EXPECT_FALSE(scrubber_.progress().running);
  scrubber_.step(SmallStore::kNow);
  EXPECT_EQ(copies_.verdicts, (Verdicts{{2, Kind::kWhole}}))
      << "the one that was begun, in which nothing wrong was found";
  EXPECT_EQ(scrub().entries_done, 2u) << "another scrub begins anew";
}

TEST_F(ScrubberTest, AtItsCloseACopyThatWasBegunIsGivenUp) {
  add(1);
  ASSERT_TRUE(scrubber_.start(1));
  scrubber_.step(SmallStore::kNow);
  scrubber_.close();
  EXPECT_EQ(copies_.verdicts, (Verdicts{{1, Kind::kWhole}}));
  EXPECT_FALSE(scrubber_.progress().running);
}

}  // namespace kvcachefs::scrubber_test
