// A lane of the promoter: how bytes come back to memory, how an open waits for memory, and what a reader gets
// from the disk. The outcomes are in promoter_test, the order of requests and closing in closed_tier_test.
#include "tier/disk/promoter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

#include "alloc/memory_arena.h"
#include "base/clock.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/idle_residency.h"
#include "tests/support/mount.h"
#include "tests/support/small_store.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs::promoter_lane_test {

using Kind = PromoteOutcome::Kind;
using test::SmallStore;

constexpr uint64_t kUnitBytes = SmallStore::kUnitBytes;
constexpr uint64_t kIno = 7;
constexpr uint64_t kOther = 100;  // the first of the others

class ColdEntry final : public test::IdleResidency {
 public:
  ColdEntry() : file_(::memfd_create("entry", MFD_CLOEXEC)) {}

  void has(CatalogContent content) {
    ASSERT_EQ(::ftruncate(file_.get(), static_cast<off_t>(content.size_bytes)), 0);
    content_ = std::move(content);
  }
  std::string memory() const { return test::read_at(file_.get(), 0, content_.size_bytes); }
  uint64_t memory_blocks() const {
    struct stat status {};
    EXPECT_EQ(::fstat(file_.get(), &status), 0);
    return static_cast<uint64_t>(status.st_blocks);
  }
  int fd() const { return file_.get(); }
  void lies_in(UniqueFd file) { file_ = std::move(file); }

  // The content of all entries but kIno.
  void others_have(CatalogContent content) { of_others_ = std::move(content); }

  Result<std::optional<PromoteTask>> begin_promote(uint64_t ino) override {
    ++begun;
    if (ino != kIno)
      return PromoteTask{
          .ino = ino, .fd = UniqueFd(::memfd_create("other", MFD_CLOEXEC)), .content = of_others_};
    return PromoteTask{
        .ino = ino, .fd = UniqueFd(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)), .content = content_};
  }
  void end_promote(const PromoteTask&, const PromoteOutcome&, bool asked_for) override {
    ended_asked_for = asked_for;
  }
  void waiters_told(uint64_t) override { ++told; }
  uint64_t free_bytes(bool even_promised) const override {
    ++looks;
    return even_promised ? free : free - promised;
  }
  void wake_evictor() override { ++evictor_woken; }

  int begun = 0, told = 0, evictor_woken = 0;
  mutable int looks = 0;  // at the free memory
  bool ended_asked_for = false;
  uint64_t free = uint64_t{1} << 30;
  uint64_t promised = 0;

 private:
  UniqueFd file_;
  CatalogContent content_;
  CatalogContent of_others_;
};

class PromoterLaneTest : public ::testing::Test {
 protected:
  PromoterLaneTest() { promoter_.add(lane_); }
  ~PromoterLaneTest() override {
    promoter_.close();
    lane_.close();
  }
  void step_until(const std::function<bool()>& condition) {
    ASSERT_TRUE(test::eventually([&] {
      if (!condition()) lane_.step(std::chrono::milliseconds(1));
      return condition();
    }));
  }
  // The place for the outcome that this request's waiter is told.
  std::shared_ptr<std::optional<Kind>> request(int priority, uint64_t ino = kIno,
                                               uint64_t patience_ends_ms = UINT64_MAX) {
    auto told = std::make_shared<std::optional<Kind>>();
    EXPECT_TRUE(promoter_.request(
        ino, priority, [told](const PromoteOutcome& outcome) { *told = outcome.kind; },
        priority == Promoter::kWriterPriority ? patience_ends_ms : 0));
    return told;
  }
  std::optional<Kind> promote() {
    const auto told = request(Promoter::kOpenPriority);
    step_until([&] { return told->has_value(); });
    return *told;
  }
  // The bytes that a reader gets from the disk, or the name of the error.
  std::string read(const CatalogContent& content, uint64_t offset, size_t size) {
    std::optional<std::string> got;
    promoter_.read(content, offset, size, [&](Result<std::span<const std::byte>> bytes) {
      got = bytes ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size())
                  : test::error_name(bytes.error().code);
    });
    step_until([&] { return got.has_value(); });
    return got.value_or("");
  }

  SmallStore store_;
  ColdEntry entry_;
  Promoter promoter_{*store_, entry_};
  PromoterLane lane_{promoter_, store_.channel()};
};

TEST_F(PromoterLaneTest, TheBytesComeBackToMemory) {
  // A small entry comes through a buffer, a large one straight into its pages.
  for (const size_t size : {size_t{0}, size_t{1}, 2 * kUnitBytes + 5, kBufferedBytesMax + 4097}) {
    SCOPED_TRACE(size);
    const std::string bytes = test::pattern(size, size);
    entry_.has(store_.put(bytes));
    EXPECT_EQ(promote(), Kind::kPromoted);
    EXPECT_TRUE(entry_.ended_asked_for);
    EXPECT_EQ(entry_.memory(), bytes);
    // A file that grows shows what lay behind its end.
    ASSERT_EQ(::ftruncate(entry_.fd(), static_cast<off_t>(size + 100)), 0);
    EXPECT_EQ(test::read_at(entry_.fd(), static_cast<off_t>(size), 100), std::string(100, '\0'));
  }
  EXPECT_EQ(entry_.told, 4);
  EXPECT_EQ(promoter_.arriving_bytes(), 0u);
  EXPECT_EQ(promoter_.queued(), 0u);
  EXPECT_TRUE(lane_.idle());
}

TEST_F(PromoterLaneTest, AHoleComesBackAsAHole) {
  CatalogContent content = store_.put(test::pattern(1, 2 * kUnitBytes));
  const std::string data = store_.bytes_of(content);
  Hasher hasher;
  hasher.update(std::as_bytes(std::span(data)).first(kUnitBytes));
  hash_hole(hasher, 100);
  hasher.update(std::as_bytes(std::span(data)).subspan(kUnitBytes));
  content.checksum = hasher.digest();
  content.extents.insert(content.extents.begin() + 1, Extent{0, 100});
  content.size_bytes = 102 * kUnitBytes;
  entry_.has(content);
  EXPECT_EQ(promote(), Kind::kPromoted);
  EXPECT_TRUE(entry_.memory() == store_.bytes_of(content));
  EXPECT_EQ(entry_.memory_blocks(), 2 * kUnitBytes / 512);
  EXPECT_EQ(read(content, kUnitBytes - 2, 4), data.substr(kUnitBytes - 2, 2) + std::string(2, '\0'));
}

TEST_F(PromoterLaneTest, AnEntryIsBroughtOnceForAllWhoAsk) {
  entry_.has(store_.put(test::pattern(1, kUnitBytes)));
  const auto prefetch = request(0);
  const auto open = request(Promoter::kOpenPriority);
  EXPECT_EQ(promoter_.queued(), 1u);
  step_until([&] { return open->has_value(); });
  EXPECT_EQ(*prefetch, Kind::kPromoted);
  EXPECT_EQ(*open, Kind::kPromoted);
  EXPECT_EQ(entry_.begun, 1);
}

TEST_F(PromoterLaneTest, AnOpenWithoutMemoryLearnsWhetherTheDiskCanServeIt) {
  const CatalogContent content = store_.put(test::pattern(1, 2 * kUnitBytes));
  entry_.has(content);
  entry_.free = 0;
  const auto open = request(Promoter::kOpenPriority);
  lane_.step(SmallStore::kNow);
  EXPECT_EQ(entry_.memory_room().wanted_bytes(Room::Whose::kPromotion), 2 * kUnitBytes);
  EXPECT_GT(entry_.evictor_woken, 0);
  EXPECT_FALSE(*open) << "the evictor may make room";
  entry_.memory_room().nothing_to_evict(Room::Whose::kPromotion);
  step_until([&] { return open->has_value(); });
  EXPECT_EQ(*open, Kind::kIntactOnDisk);
  EXPECT_EQ(entry_.memory_blocks(), 0u);
  EXPECT_EQ(entry_.memory_room().wanted_bytes(), 0u);
  EXPECT_EQ(promoter_.arriving_bytes(), 0u);
}

TEST_F(PromoterLaneTest, AnOpenWaitsForTheRoomThatTheEvictorMakes) {
  entry_.has(store_.put(test::pattern(1, kUnitBytes)));
  entry_.free = 0;
  const auto open = request(Promoter::kOpenPriority);
  lane_.step(SmallStore::kNow);
  entry_.free = kUnitBytes;
  entry_.memory_room().room_made();
  step_until([&] { return open->has_value(); });
  EXPECT_EQ(*open, Kind::kPromoted);
  EXPECT_EQ(entry_.memory(), test::pattern(1, kUnitBytes));
}

// A tmpfs counts its blocks in batches per processor: not all that looks free can be had.
TEST_F(PromoterLaneTest, MemoryThatOnlyLooksFreeIsWaitedForAsAnyOther) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root for its tmpfs";
  const test::DiskDirectory place;
  const auto arena = MemoryArena::create({.path = place / "arena", .size_bytes = kUnitBytes});
  ASSERT_TRUE(arena) << arena.error().message;
  const auto root = arena->open(arena->tree(), O_RDONLY | O_DIRECTORY);
  ASSERT_TRUE(root);
  entry_.lies_in(UniqueFd(::openat(root->get(), "entry", O_RDWR | O_CREAT, 0600)));
  entry_.has(store_.put(test::pattern(1, 4 * kUnitBytes)));
  const auto open = request(Promoter::kOpenPriority);
  step_until([&] { return open->has_value(); });
  EXPECT_EQ(*open, Kind::kIntactOnDisk);
}

TEST_F(PromoterLaneTest, WhoeverWaitsForMemoryIsInNobodysWay) {
  entry_.has(store_.put(test::pattern(1, kUnitBytes)));
  entry_.free = kUnitBytes;
  entry_.others_have({.size_bytes = uint64_t{300} << 20, .checksum = {}, .extents = {{1, 1}}});
  auto huge = request(Promoter::kWriterPriority, kOther);
  lane_.step(SmallStore::kNow);
  entry_.others_have(store_.put(test::pattern(2, 2 * kUnitBytes)));
  for (uint64_t i = 1; i <= 300; ++i) (void)request(Promoter::kWriterPriority, kOther + i);
  EXPECT_EQ(promote(), Kind::kPromoted);
  EXPECT_EQ(entry_.begun, 302);
  EXPECT_FALSE(*huge);
  EXPECT_EQ(promoter_.queued(), 301u);
}

TEST_F(PromoterLaneTest, ManyThatWaitCostOneLookAtTheMemory) {
  entry_.free = 0;
  entry_.others_have(store_.put(test::pattern(2, 2 * kUnitBytes)));
  for (uint64_t i = 0; i < 100; ++i) (void)request(Promoter::kWriterPriority, kOther + i);
  lane_.step(SmallStore::kNow);
  EXPECT_EQ(entry_.begun, 100);
  const int looks = entry_.looks;
  const int woken = entry_.evictor_woken;
  ASSERT_TRUE(test::eventually([&] {
    lane_.step(std::chrono::milliseconds(1));
    return entry_.looks > looks;
  }));
  EXPECT_LE(entry_.looks - looks, 2);
  EXPECT_LE(entry_.evictor_woken - woken, 1);
}

TEST_F(PromoterLaneTest, EachWriterGivesUpAtItsOwnTime) {
  entry_.has(store_.put(test::pattern(1, 2 * kUnitBytes)));
  entry_.free = 0;
  const auto open = request(Promoter::kWriterPriority);
  const auto truncation = request(Promoter::kWriterPriority, kIno, now_coarse_ms() + 1);
  step_until([&] { return truncation->has_value(); });
  EXPECT_EQ(*truncation, Kind::kNoMemory);
  EXPECT_FALSE(*open);
  const auto later = request(Promoter::kWriterPriority, kIno, now_coarse_ms() + 1);
  step_until([&] { return later->has_value(); });
  EXPECT_EQ(*later, Kind::kNoMemory);
  EXPECT_FALSE(*open);
  entry_.free = 2 * kUnitBytes;
  step_until([&] { return open->has_value(); });
  EXPECT_EQ(*open, Kind::kPromoted);
  EXPECT_EQ(entry_.begun, 1);
}

TEST_F(PromoterLaneTest, TheMostPatientWriterDecidesHowLongTheEntryIsWaitedFor) {
  entry_.has(store_.put(test::pattern(1, 2 * kUnitBytes)));
  entry_.free = 0;
  const auto truncation = request(Promoter::kWriterPriority, kIno, now_coarse_ms() + 1);
  const auto reader = request(Promoter::kOpenPriority);
  step_until([&] { return reader->has_value(); });
  EXPECT_EQ(*truncation, Kind::kNoMemory);
  EXPECT_EQ(*reader, Kind::kIntactOnDisk);
}

// An attempt that fails takes all that is free from everybody else until it is given back.
TEST_F(PromoterLaneTest, AWriterTakesWhatIsPromisedAndNothingThatIsNotFree) {
  entry_.has(store_.put(test::pattern(1, 2 * kUnitBytes)));
  entry_.free = entry_.promised = kUnitBytes;
  const auto open = request(Promoter::kWriterPriority);
  lane_.step(SmallStore::kNow);
  const auto exhausted = [&] {
    entry_.memory_room().nothing_to_evict(Room::Whose::kWriter);
    const int looks = entry_.looks;
    step_until([&] { return entry_.looks > looks; });
  };
  exhausted();
  EXPECT_EQ(entry_.memory_blocks(), 0u);
  EXPECT_FALSE(*open);
  entry_.free = entry_.promised = 2 * kUnitBytes;
  exhausted();
  step_until([&] { return open->has_value(); });
  EXPECT_EQ(*open, Kind::kPromoted);
}

TEST_F(PromoterLaneTest, AReaderGetsItsRangeFromTheDisk) {
  const std::string bytes = test::pattern(1, 3 * kUnitBytes + 100);
  const CatalogContent content = store_.put(bytes);
  EXPECT_EQ(read(content, 0, bytes.size()), bytes);
  EXPECT_EQ(read(content, 4097, 2 * kUnitBytes), bytes.substr(4097, 2 * kUnitBytes));
  EXPECT_EQ(read(content, bytes.size() - 10, 4096), bytes.substr(bytes.size() - 10)) << "the end";
  EXPECT_EQ(read(content, bytes.size(), 4096), "");
  store_.disk().fail_reads(1);
  EXPECT_EQ(read(content, 0, 1), "EIO");
}

}  // namespace kvcachefs::promoter_lane_test
