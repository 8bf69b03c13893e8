// The outcomes of copies to a disk that fails in each way, as the pool and the waiter are told.
#include "tier/disk/spiller.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <functional>
#include <memory>
#include <thread>

#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tests/support/idle_residency.h"

namespace kvcachefs::spiller_test {

using Kind = SpillOutcome::Kind;
using ::testing::ElementsAre;

constexpr uint64_t kUnitBytes = 8192;
constexpr uint64_t kUnits = 64;
constexpr uint64_t kIno = 7;
constexpr unsigned kAttempts = 8;

// A residency with one file to be copied.
class OneFile final : public test::IdleResidency {
 public:
  std::expected<SpillTask, Refusal> begin_spill(uint64_t ino, bool) override {
    begun.push_back(ino);
    if (refusal) return std::unexpected(*refusal);
    return SpillTask{.ino = ino,
                     .fd = UniqueFd(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)),
                     .size_bytes = size_bytes,
                     .proven = mappable,
                     .mappable = mappable,
                     .before = before};
  }
  bool end_spill(const SpillTask&, SpillOutcome outcome) override {
    ended.push_back(outcome.kind);
    last = std::move(outcome);
    return takes && (last.kind == Kind::kCopied || last.kind == Kind::kUnchanged);
  }
  void want_disk_room(uint64_t bytes) override { wanted_bytes = bytes; }
  void fill(const std::string& bytes) {
    size_bytes = bytes.size();
    if (::ftruncate(file_.get(), 0) != 0) throw std::runtime_error("ftruncate");
    if (::pwrite(file_.get(), bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("pwrite");
  }

  // Data of one unit at the start, a hole, and `end` in the last unit.
  void fill_around_hole(const std::string& bytes, uint64_t end_at, const std::string& end) {
    fill(bytes);
    fill_around_hole(end_at, end);
  }
  void fill_around_hole(uint64_t end_at, const std::string& end) {
    size_bytes = end_at + end.size();
    if (::pwrite(file_.get(), end.data(), end.size(), static_cast<off_t>(end_at)) !=
        static_cast<ssize_t>(end.size()))
      throw std::runtime_error("pwrite");
  }
  void allocate_beyond(uint64_t offset, uint64_t bytes) {
    if (::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes)) != 0)
      throw std::runtime_error("fallocate");
  }
  uint64_t memory_bytes() const override {
    struct stat status {};
    if (::fstat(file_.get(), &status) != 0) throw std::runtime_error("fstat");
    return static_cast<uint64_t>(status.st_blocks) * 512;
  }

  std::vector<uint64_t> begun;
  std::optional<Refusal> refusal;
  bool mappable = false;
  uint64_t size_bytes = 0;
  std::optional<CatalogContent> before;
  bool takes = true;
  std::vector<Kind> ended;
  SpillOutcome last;
  uint64_t wanted_bytes = 0;

 private:
  const UniqueFd file_{::memfd_create("entry", MFD_CLOEXEC)};
};

class SpillerTest : public ::testing::Test {
 protected:
  SpillerTest() {
    auto disk =
        std::make_unique<test::FaultyDisk>(test::FaultyDiskOptions{.size_bytes = kUnits * kUnitBytes});
    disk_ = disk.get();
    auto catalog = Catalog::open(directory_ / "catalog", {.create = true});
    if (!catalog) throw std::runtime_error(catalog.error().message);
    store_ = std::make_unique<SpillStore>(std::move(disk), std::move(*catalog), kUnitBytes, counters_);
    spiller_ = std::make_unique<Spiller>(*store_, residency_, std::move(*disk_->channel(8)));
    residency_.fill(bytes_);
  }
  ~SpillerTest() override { spiller_->close(); }

  void ask() {
    told_.reset();
    spiller_->request(kIno, residency_.size_bytes, true,
                      [this](Result<void> outcome) { told_ = outcome ? 0 : outcome.error().code; });
  }
  bool step_until(const std::function<bool()>& done) {
    for (int steps = 0; !done() && steps < 10'000; ++steps) spiller_->step(std::chrono::milliseconds(1));
    return done();
  }
  // What the waiter is told: 0 or an errno; -1: nothing.
  int copy() {
    ask();
    return step_until([&] { return told_.has_value(); }) ? *told_ : -1;
  }

  // The first bytes that the disk has of the last copy, beyond its end too.
  std::string on_disk(size_t bytes) const {
    std::string found;
    for (const Extent& extent : residency_.last.content.extents) {
      std::string piece(extent.count * kUnitBytes, '\0');
      if (extent.start != 0) disk_->peek(extent.start * kUnitBytes, std::as_writable_bytes(std::span(piece)));
      found += piece;
    }
    found.resize(bytes);
    return found;
  }

  test::DiskDirectory directory_;
  PoolCounters counters_;
  const std::string bytes_ = test::pattern(1, 2 * kUnitBytes - 100);
  test::FaultyDisk* disk_ = nullptr;
  std::unique_ptr<SpillStore> store_;
  OneFile residency_;
  std::unique_ptr<Spiller> spiller_;
  std::optional<int> told_;
};

TEST_F(SpillerTest, CopiedAndThenUnchanged) {
  EXPECT_EQ(copy(), 0);
  const CatalogContent content = residency_.last.content;
  EXPECT_EQ(content.size_bytes, bytes_.size());
  EXPECT_TRUE(content.checksum == checksum_of(std::as_bytes(std::span(bytes_))));
  residency_.before = content;
  const uint64_t writes = disk_->counts().writes;
  EXPECT_EQ(copy(), 0);
  EXPECT_TRUE(residency_.last.content.extents == content.extents);
  EXPECT_EQ(disk_->counts().writes, writes);
  EXPECT_THAT(residency_.ended, ElementsAre(Kind::kCopied, Kind::kUnchanged));
}

TEST_F(SpillerTest, AFileThatIsCutShortEachTime) {
  residency_.size_bytes += kUnitBytes;
  EXPECT_EQ(copy(), EBUSY);
  std::vector<Kind> expected(kAttempts - 1, Kind::kAgain);
  expected.push_back(Kind::kBusy);
  EXPECT_EQ(residency_.ended, expected);
}

TEST_F(SpillerTest, ACopyThatIsNeverTaken) {
  residency_.takes = false;
  EXPECT_EQ(copy(), EBUSY);
  EXPECT_EQ(residency_.ended, std::vector<Kind>(kAttempts, Kind::kCopied));
}

TEST_F(SpillerTest, AFileThatTheDiskCanNeverHold) {
  residency_.fill(test::pattern(2, kUnits * kUnitBytes));
  EXPECT_EQ(copy(), ENOSPC);
  EXPECT_THAT(residency_.ended, ElementsAre(Kind::kNoRoom));
}

TEST_F(SpillerTest, ADiskThatIsFullForNow) {
  std::vector<Extent> taken;
  while (auto space = store_->allocate(kUnitBytes)) taken.insert(taken.end(), space->begin(), space->end());
  ask();
  ASSERT_TRUE(step_until([&] { return residency_.wanted_bytes > 0; }));
  EXPECT_EQ(residency_.ended.back(), Kind::kAgain);
  EXPECT_FALSE(told_);
  store_->give_back(taken);
  ASSERT_TRUE(step_until([&] { return told_.has_value(); }));
  EXPECT_EQ(*told_, 0);
  EXPECT_EQ(residency_.ended.back(), Kind::kCopied);
}

// Whatever the disk's errno is, the disk has refused, and no writer was faster. That of one that is thinly
// provisioned may be ENOSPC.
TEST_F(SpillerTest, ADiskThatRefuses) {
  for (const int error : {EIO, EBUSY, ENOSPC}) {
    residency_.ended.clear();
    disk_->fail_writes(1, error);
    EXPECT_EQ(copy(), error);
    EXPECT_EQ(residency_.ended.back(), Kind::kRefused) << error;
    EXPECT_EQ(residency_.last.why.code, error);
    EXPECT_THAT(residency_.last.why.message, ::testing::HasSubstr("at byte"));
    ASSERT_TRUE(step_until([&] { return residency_.ended.back() == Kind::kCopied; })) << "it is tried again";
    EXPECT_THAT(residency_.ended, ElementsAre(Kind::kRefused, Kind::kCopied));
  }
}

// Each refused copy keeps its extents until it has others: not one for each fsync that was told so.
TEST_F(SpillerTest, RefusedAgainAndAgainAnEntryKeepsOneCopysSpace) {
  const auto free_units = [&] { return store_->space().free_units(); };
  disk_->fail_writes(1000, EIO);
  EXPECT_EQ(copy(), EIO);
  const uint64_t after_one = free_units();
  for (int i = 0; i < 20; ++i) EXPECT_EQ(copy(), EIO);
  EXPECT_EQ(free_units(), after_one);
  EXPECT_EQ(spiller_->backlog_bytes(), residency_.size_bytes);
  disk_->fail_writes(0, 0);
  ASSERT_TRUE(step_until([&] { return spiller_->idle(); }));
  EXPECT_EQ(residency_.ended.back(), Kind::kCopied);
}

// Requests wait for space one after the other, and the catalog may hold back space for as long as it cannot
// be written: no waiter waits for all of that.
TEST_F(SpillerTest, AWaiterIsToldInTimeThatTheDiskIsFull) {
  std::vector<Extent> taken;
  while (auto space = store_->allocate(kUnitBytes)) taken.insert(taken.end(), space->begin(), space->end());
  spiller_->set_waiter_patience_ms(20);
  std::vector<int> told;
  for (uint64_t ino = 1; ino <= 10; ++ino)
    spiller_->request(ino, 100, true,
                      [&](Result<void> outcome) { told.push_back(outcome ? 0 : outcome.error().code); });
  ASSERT_TRUE(step_until([&] { return told.size() == 10; }));
  EXPECT_THAT(told, ::testing::Each(ENOSPC));
  EXPECT_FALSE(spiller_->idle()) << "the entries still wait for their copies";
}

TEST_F(SpillerTest, AWaiterWaitsForADiskThatIsMerelySlow) {
  spiller_->set_waiter_patience_ms(1);
  ask();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));  // longer than its patience
  ASSERT_TRUE(step_until([&] { return told_.has_value(); }));
  EXPECT_EQ(*told_, 0);
}

TEST_F(SpillerTest, TheDiskGetsTheBytesAndNothingOfAnotherEntry) {
  // The sizes end in the midst of a unit. The last one is too large for a buffer: its own pages are written.
  for (const size_t size : {2 * kUnitBytes, size_t{1}, kUnitBytes - 1, kBufferedBytesMax + 4097}) {
    SCOPED_TRACE(size);
    const std::string bytes = test::pattern(size, size);
    residency_.fill(bytes);
    residency_.mappable = true;
    ASSERT_EQ(copy(), 0);
    EXPECT_TRUE(residency_.last.content.checksum == checksum_of(std::as_bytes(std::span(bytes))));
    const size_t padding = (4096 - size % 4096) % 4096;
    EXPECT_TRUE(on_disk(size + padding) == bytes + std::string(padding, '\0'));
  }
  EXPECT_EQ(spiller_->backlog_bytes(), 0u);
}

// Its pages are too many for a buffer. A mapping would fill the holes, also where memory that a client has
// allocated beyond the end makes up for them.
TEST_F(SpillerTest, ACopyFillsNoHole) {
  const std::string page = test::pattern(1, 4096);
  const uint64_t units = kBufferedBytesMax / kUnitBytes + 2;
  ASSERT_LT(units, kUnits);
  residency_.fill(page);
  for (uint64_t unit = 1; unit < units; ++unit) residency_.fill_around_hole(unit * kUnitBytes, page);
  residency_.allocate_beyond(2 * kBufferedBytesMax, kBufferedBytesMax);
  residency_.mappable = true;
  const uint64_t before = residency_.memory_bytes();
  ASSERT_EQ(copy(), 0);
  EXPECT_EQ(residency_.memory_bytes(), before);
}

TEST_F(SpillerTest, AnEmptyFileNeedsNoDisk) {
  residency_.fill("");
  EXPECT_EQ(copy(), 0);
  EXPECT_THAT(residency_.ended, ElementsAre(Kind::kCopied));
  EXPECT_EQ(disk_->counts().writes, 0u);
}

TEST_F(SpillerTest, AHoleTakesNoSpaceOnTheDisk) {
  residency_.fill_around_hole(test::pattern(1, kUnitBytes), 5 * kUnitBytes + 3, "end");
  const uint64_t used = store_->space().used_units();
  ASSERT_EQ(copy(), 0);
  EXPECT_EQ(store_->space().used_units(), used + 2);
  ASSERT_EQ(residency_.last.content.extents.size(), 3u);
  EXPECT_EQ(residency_.last.content.extents[1], (Extent{0, 4}));
  EXPECT_EQ(on_disk(5 * kUnitBytes + 7).substr(5 * kUnitBytes), std::string("\0\0\0end\0", 7));
  residency_.before = residency_.last.content;
  EXPECT_EQ(copy(), 0);
  EXPECT_EQ(residency_.ended.back(), Kind::kUnchanged);
}

TEST_F(SpillerTest, UrgentRequestsComeFirst) {
  residency_.refusal = Residency::Refusal::kNever;
  spiller_->request(1, 100, false);
  spiller_->request(2, 100, false);
  spiller_->request(3, 100, true);
  EXPECT_EQ(spiller_->backlog_bytes(), 300u);
  EXPECT_FALSE(spiller_->idle());
  spiller_->step(std::chrono::milliseconds(0));
  EXPECT_THAT(residency_.begun, ElementsAre(3, 1, 2));
  EXPECT_EQ(spiller_->backlog_bytes(), 0u);
  EXPECT_TRUE(spiller_->idle());
}

TEST_F(SpillerTest, AnEntryThatNeedsNoCopyIsASuccess) {
  residency_.refusal = Residency::Refusal::kNever;
  EXPECT_EQ(copy(), 0);
  EXPECT_TRUE(residency_.ended.empty());
}

TEST_F(SpillerTest, WhatWasNotCopiedGivesItsSpaceBack) {
  const uint64_t used = store_->space().used_units();
  residency_.takes = false;
  EXPECT_EQ(copy(), EBUSY);
  EXPECT_EQ(store_->space().used_units(), used);
  residency_.takes = true;
  disk_->fail_writes(1);
  EXPECT_EQ(copy(), EIO);
  EXPECT_EQ(store_->space().used_units(), used + 2) << "the refused place, so that the next one is another";
  ASSERT_TRUE(step_until([&] { return spiller_->idle(); }));
  EXPECT_EQ(residency_.ended.back(), Kind::kCopied);
  EXPECT_TRUE(on_disk(bytes_.size()) == bytes_);
  EXPECT_EQ(store_->space().used_units(), used + 2) << "the copy alone";
}

TEST_F(SpillerTest, AFileThatStaysMappedIsNoBacklog) {
  residency_.refusal = Residency::Refusal::kLater;
  spiller_->request(kIno, 100, false);
  spiller_->step(std::chrono::milliseconds(0));
  EXPECT_FALSE(spiller_->idle()) << "it may only be about to close";
  ASSERT_TRUE(step_until([&] { return spiller_->idle(); }));
  EXPECT_EQ(spiller_->backlog_bytes(), 0u);
  residency_.refusal.reset();
  ASSERT_TRUE(step_until([&] { return !residency_.ended.empty(); })) << "the mapping has ended";
  EXPECT_THAT(residency_.ended, ElementsAre(Kind::kCopied));
}

}  // namespace kvcachefs::spiller_test
