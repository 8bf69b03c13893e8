// The outcomes of promotions from a disk that fails in each way: the pool and the waiter are told the same.
#include "tier/disk/promoter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>

#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tests/support/idle_residency.h"

namespace kvcachefs::promoter_test {

using Kind = PromoteOutcome::Kind;

constexpr uint64_t kUnitBytes = 8192;
constexpr uint64_t kSize = 3 * kUnitBytes - 100;
constexpr uint64_t kIno = 7;

// A residency with one cold entry.
class OneEntry final : public test::IdleResidency {
 public:
  Result<std::optional<PromoteTask>> begin_promote(uint64_t ino) override {
    if (refusal != 0) return fail(refusal);
    file = UniqueFd(::memfd_create("entry", MFD_CLOEXEC));
    if (::ftruncate(file.get(), static_cast<off_t>(content.size_bytes)) != 0) return fail(errno);
    return PromoteTask{
        .ino = ino, .fd = UniqueFd(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0)), .content = content};
  }
  void end_promote(const PromoteTask&, const PromoteOutcome& outcome, bool) override { ended = outcome; }
  uint64_t free_bytes(bool) const override { return memory; }
  uint64_t memory_bytes() const override { return memory; }

  CatalogContent content;
  uint64_t memory = uint64_t{1} << 30;
  int refusal = 0;
  UniqueFd file;
  std::optional<PromoteOutcome> ended;
};

class PromoterTest : public ::testing::Test {
 protected:
  PromoterTest() {
    auto disk = std::make_unique<test::FaultyDisk>(test::FaultyDiskOptions{});
    disk_ = disk.get();
    auto catalog = Catalog::open(directory_ / "catalog", {.create = true});
    if (!catalog) throw std::runtime_error(catalog.error().message);
    store_ = std::make_unique<SpillStore>(std::move(disk), std::move(*catalog), kUnitBytes, counters_);
    bytes_ = test::pattern(1, kSize);
    test::AlignedMemory memory(3 * kUnitBytes);
    std::ranges::copy(std::as_bytes(std::span(bytes_)), memory.all().begin());
    EXPECT_EQ(test::write_blocks(*disk_, kUnitBytes, memory.all()), 0);
    residency_.content = {
        .size_bytes = kSize, .checksum = checksum_of(std::as_bytes(std::span(bytes_))), .extents = {{1, 3}}};
  }

  // The outcome that the waiter of a promotion is told.
  std::optional<PromoteOutcome> promote(int priority = Promoter::kOpenPriority) {
    std::optional<PromoteOutcome> told;
    Promoter promoter(*store_, residency_);
    PromoterLane lane(promoter, std::move(*disk_->channel(8)));
    promoter.add(lane);
    residency_.ended.reset();
    EXPECT_TRUE(promoter.request(kIno, priority, [&](const PromoteOutcome& outcome) { told = outcome; }));
    for (int steps = 0; !told && steps < 1000; ++steps) lane.step(std::chrono::milliseconds(1));
    promoter.close();
    lane.close();
    if (told && residency_.ended) {
      EXPECT_EQ(residency_.ended->kind, told->kind);
      EXPECT_TRUE(residency_.ended->finding == told->finding);
    }
    return told;
  }
  // True if the pool and the waiter are told that the copy is bad in this way.
  bool fails_with(Finding finding) {
    const auto told = promote();
    return told && residency_.ended && told->kind == Kind::kFailed && told->finding == finding;
  }
  void no_memory() { residency_.memory = kUnitBytes; }

  test::DiskDirectory directory_;
  PoolCounters counters_;
  test::FaultyDisk* disk_ = nullptr;
  std::unique_ptr<SpillStore> store_;
  OneEntry residency_;
  std::string bytes_;
};

TEST_F(PromoterTest, WithMemory) {
  const auto told = promote();
  ASSERT_TRUE(told && residency_.ended);
  EXPECT_EQ(told->kind, Kind::kPromoted);
  EXPECT_FALSE(told->lacks_memory());
  std::string found(kSize, '\0');
  ASSERT_EQ(::pread(residency_.file.get(), found.data(), kSize, 0), static_cast<ssize_t>(kSize));
  EXPECT_TRUE(found == bytes_);
}

TEST_F(PromoterTest, WithoutMemory) {
  no_memory();
  auto told = promote();
  ASSERT_TRUE(told && residency_.ended);
  EXPECT_EQ(told->kind, Kind::kIntactOnDisk);
  EXPECT_TRUE(told->lacks_memory());
  const uint64_t reads = disk_->counts().reads;
  told = promote(0);
  ASSERT_TRUE(told && residency_.ended);
  EXPECT_EQ(told->kind, Kind::kNoMemory) << "nobody waits for a prefetch";
  EXPECT_TRUE(told->lacks_memory());
  EXPECT_EQ(disk_->counts().reads, reads) << "the copy was not looked at";
}

TEST_F(PromoterTest, ACopyThatIsDamaged) {
  disk_->rot(kUnitBytes, kSize);
  EXPECT_TRUE(fails_with({Finding::Kind::kWrongBytes}));
  no_memory();
  EXPECT_TRUE(fails_with({Finding::Kind::kWrongBytes})) << "verified without memory";
  residency_.content.extents = {{1, 2}};
  EXPECT_TRUE(fails_with({Finding::Kind::kTooFewExtents}));
  EXPECT_TRUE(residency_.ended->finding.is_damage());
}

TEST_F(PromoterTest, ACopyThatCannotBeRead) {
  disk_->fail_reads(1, EREMOTEIO);
  EXPECT_TRUE(fails_with({Finding::Kind::kUnreadable, EREMOTEIO}));
  EXPECT_FALSE(residency_.ended->finding.is_damage());
  disk_->fail_reads(1, EILSEQ);
  EXPECT_TRUE(fails_with({Finding::Kind::kUnreadable, EILSEQ})) << "which is no word on the bytes";
  disk_->fail_reads(1, ENOMEM);
  const auto told = promote();
  ASSERT_TRUE(told && residency_.ended);
  EXPECT_EQ(told->kind, Kind::kNoMemory);
}

// The waiter gets the reason, not the advice to look again, which would be in vain.
TEST_F(PromoterTest, OneThatCannotBegin) {
  residency_.refusal = EMFILE;
  auto told = promote();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->kind, Kind::kFailed);
  EXPECT_TRUE(told->finding == (Finding{Finding::Kind::kUnreadable, EMFILE}));
  residency_.refusal = ENOMEM;
  told = promote();
  ASSERT_TRUE(told);
  EXPECT_EQ(told->kind, Kind::kNoMemory);
  EXPECT_FALSE(residency_.ended);
}

TEST_F(PromoterTest, AfterTheEnd) {
  Promoter promoter(*store_, residency_);
  promoter.close();
  std::optional<PromoteOutcome> told;
  EXPECT_TRUE(promoter.request(kIno, Promoter::kOpenPriority,
                               [&](const PromoteOutcome& outcome) { told = outcome; }));
  ASSERT_TRUE(told);
  EXPECT_EQ(told->kind, Kind::kEnding);
}

}  // namespace kvcachefs::promoter_test
