// The parts of a disk tier without a pool: the order of their work, and that every request is answered that
// was under way when their threads ended, or that came later.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "tests/support/catalogs.h"
#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tests/support/idle_residency.h"
#include "tier/disk/promoter.h"
#include "tier/disk/spiller.h"

namespace kvcachefs::closed_tier_test {

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr uint64_t kUnitBytes = 8192;
constexpr uint64_t kIno = 7;

// A residency with one file to be copied to the disk, and none to be copied back.
class OneFile final : public test::IdleResidency {
 public:
  OneFile() : file_(::memfd_create("entry", MFD_CLOEXEC)) {
    const std::string content = test::pattern(1, kUnitBytes);  // no hole, because a hole would need no disk
    if (::pwrite(file_.get(), content.data(), kUnitBytes, 0) != kUnitBytes)
      throw std::runtime_error("pwrite");
  }
  std::expected<SpillTask, Refusal> begin_spill(uint64_t ino, bool) override {
    return SpillTask{.ino = ino,
                     .fd = UniqueFd(::fcntl(file_.get(), F_DUPFD_CLOEXEC, 0)),
                     .size_bytes = kUnitBytes,
                     .before = {}};
  }
  Result<std::optional<PromoteTask>> begin_promote(uint64_t ino) override {
    promoted_.push_back(ino);
    return std::nullopt;
  }
  const std::vector<uint64_t>& promoted() const { return promoted_; }

 private:
  std::vector<uint64_t> promoted_;
  UniqueFd file_;
};

int code_of(const PromoteOutcome& outcome) {
  return outcome.kind == PromoteOutcome::Kind::kEnding ? ESHUTDOWN : outcome.finding.error;
}

template <class T>
int code_of(const Result<T>& result) {
  return result ? 0 : result.error().code;
}

class ClosedTierTest : public ::testing::Test {
 protected:
  ClosedTierTest() {
    auto disk = std::make_unique<test::FaultyDisk>(test::FaultyDiskOptions{});
    disk_ = disk.get();
    auto catalog = Catalog::open(directory_ / "catalog", {.create = true});
    if (!catalog) throw std::runtime_error(catalog.error().message);
    store_ = std::make_unique<SpillStore>(std::move(disk), std::move(*catalog), kUnitBytes, counters_);
    disk_->hold();
  }
  std::unique_ptr<BlockChannel> channel() { return std::move(*disk_->channel(8)); }
  // A callback for the next waiter; answers() then has its errno, 0: success, -1: no answer yet.
  template <class Outcome>
  auto told() {
    auto answer = std::make_shared<int>(-1);
    answers_.push_back(answer);
    return [answer](const Outcome& outcome) { *answer = code_of(outcome); };
  }
  std::vector<int> answers() const {
    std::vector<int> result;
    for (const auto& answer : answers_) result.push_back(*answer);
    return result;
  }

  test::DiskDirectory directory_;
  PoolCounters counters_;
  test::FaultyDisk* disk_ = nullptr;
  std::unique_ptr<SpillStore> store_;
  OneFile residency_;
  std::vector<std::shared_ptr<int>> answers_;
};

// Before the promoter closes: the order of its promotions, and how many may wait.
TEST_F(ClosedTierTest, PrefetchesComeByPriorityAndInABoundedQueue) {
  Promoter promoter(*store_, residency_, 5);
  PromoterLane lane(promoter, channel());
  promoter.add(lane);
  for (const auto& [ino, priority] : {std::pair(1, 0), {2, 5}, {3, 0}, {4, -7}, {1, 9}})
    EXPECT_TRUE(promoter.request(static_cast<uint64_t>(ino), priority));
  EXPECT_TRUE(promoter.request(5, 5));
  EXPECT_FALSE(promoter.request(6, 100)) << "five wait";
  EXPECT_TRUE(promoter.request(7, Promoter::kOpenPriority)) << "but somebody waits for this one";
  lane.step(kNow);
  EXPECT_EQ(residency_.promoted(), (std::vector<uint64_t>{7, 1, 2, 5, 3, 4}));
  EXPECT_EQ(promoter.queued(), 0u);
  promoter.close();
  lane.close();
}

TEST_F(ClosedTierTest, CopiesToTheDisk) {
  Spiller spiller(*store_, residency_, channel());
  spiller.request(kIno, kUnitBytes, true, told<Result<void>>());
  spiller.step(kNow);
  spiller.request(kIno, kUnitBytes, true, told<Result<void>>());
  EXPECT_EQ(answers(), (std::vector<int>{-1, -1})) << "the disk has one, and no step has begun the other";
  spiller.close();
  EXPECT_EQ(answers(), (std::vector<int>{ESHUTDOWN, ESHUTDOWN}));
  const uint64_t backlog_bytes = spiller.backlog_bytes();
  spiller.request(kIno, kUnitBytes, true, told<Result<void>>());
  EXPECT_EQ(answers().back(), ESHUTDOWN);
  spiller.request(kIno, kUnitBytes, false);
  EXPECT_EQ(spiller.backlog_bytes(), backlog_bytes);
  spiller.close();
}

TEST_F(ClosedTierTest, ReadsFromTheDisk) {
  using Bytes = Result<std::span<const std::byte>>;
  CatalogContent content = test::content_of({{1, 1}});
  content.size_bytes = kUnitBytes;
  Promoter promoter(*store_, residency_);
  PromoterLane lane(promoter, channel());
  promoter.add(lane);
  promoter.read(content, 0, kUnitBytes, told<Bytes>());
  lane.step(kNow);
  promoter.read(content, 0, kUnitBytes, told<Bytes>());
  EXPECT_TRUE(promoter.request(kIno, Promoter::kOpenPriority, told<PromoteOutcome>()));
  EXPECT_EQ(answers(), (std::vector<int>{-1, -1, -1}))
      << "the disk has one, and no step has begun the others";
  promoter.close();
  lane.close();

  EXPECT_EQ(answers(), (std::vector<int>{ESHUTDOWN, ESHUTDOWN, ESHUTDOWN}));
  promoter.read(content, 0, kUnitBytes, told<Bytes>());
  EXPECT_TRUE(promoter.request(kIno, Promoter::kOpenPriority, told<PromoteOutcome>()));
  EXPECT_EQ(answers(), std::vector<int>(5, ESHUTDOWN));
  EXPECT_EQ(promoter.queued(), 0u);
}

}  // namespace kvcachefs::closed_tier_test
