// How promotions get their memory: for all of a content or none, in which order, and what becomes of those
// that get none. The entries are files of a tmpfs, whose free memory is the pool's; the rest is in
// promoter_lane_test.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "tests/support/arena_test.h"
#include "tests/support/files.h"
#include "tests/support/idle_residency.h"
#include "tests/support/small_store.h"
#include "tier/catalog/content_layout.h"
#include "tier/disk/promoter.h"

namespace kvcachefs::promoter_memory_test {

using Kind = PromoteOutcome::Kind;
using Whose = Room::Whose;
using test::SmallStore;

constexpr uint64_t kUnitBytes = SmallStore::kUnitBytes;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr int kOpen = Promoter::kOpenPriority, kWriter = Promoter::kWriterPriority;

class ColdFiles final : public test::IdleResidency {
 public:
  explicit ColdFiles(const MemoryArena& arena) : arena_(arena) {}
  Result<std::optional<PromoteTask>> begin_promote(uint64_t ino) override {
    ++begun[ino];
    const UniqueFd file(::openat(arena_.tree_fd(), name_of(ino).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    EXPECT_TRUE(sys::truncate(file.get(), contents.at(ino).size_bytes));
    UniqueFd fd(::openat(arena_.tree_fd(), name_of(ino).c_str(), flags | O_CLOEXEC));
    return PromoteTask{.ino = ino, .fd = std::move(fd), .content = contents.at(ino)};
  }
  void end_promote(const PromoteTask& task, const PromoteOutcome& outcome, bool) override {
    ended[task.ino] = outcome;
  }
  uint64_t free_bytes(bool even_promised) const override {
    return arena_.usage().free_bytes + only_looks_free - (even_promised ? 0 : promised);
  }
  uint64_t memory_bytes() const override { return arena_.usage().size_bytes; }
  uint64_t kept_from_orders_bytes() const override { return kept_from_orders; }
  void wake_evictor() override { ++evictor_woken; }
  static std::string name_of(uint64_t ino) { return std::to_string(ino); }

  std::map<uint64_t, CatalogContent> contents;
  std::map<uint64_t, int> begun;
  std::map<uint64_t, PromoteOutcome> ended;
  int flags = O_RDWR;  // with which the files are opened
  uint64_t only_looks_free = 0;
  uint64_t promised = 0;
  uint64_t kept_from_orders = 0;
  int evictor_woken = 0;

 private:
  const MemoryArena& arena_;
};

class PromoterMemoryTest : public test::ArenaTest {
 protected:
  void SetUp() override {
    ArenaTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    pool_.emplace(*arena_);
    promoter_.emplace(*store_, *pool_);
    lane_.emplace(*promoter_, store_.channel());
    promoter_->add(*lane_);
  }
  void TearDown() override {
    if (!lane_) return;
    promoter_->close();
    lane_->close();
  }
  void set_memory(uint64_t bytes) { ASSERT_TRUE(arena_->resize(bytes)); }
  void fill_up() {
    ASSERT_TRUE(sys::allocate(make("fills the pool up").get(), 0, 0, arena_->usage().free_bytes));
    ASSERT_EQ(arena_->usage().free_bytes, 0u);
  }
  void empty() { ASSERT_EQ(::unlinkat(arena_->tree_fd(), "fills the pool up", 0), 0); }
  CatalogContent put(uint64_t units) { return store_.put(test::pattern(units, units * kUnitBytes)); }
  // One unit, a hole, and the rest.
  CatalogContent put_with_hole(uint64_t units, uint64_t hole_units) {
    CatalogContent content = put(units);
    const std::string data = store_.bytes_of(content);
    Hasher hasher;
    hasher.update(std::as_bytes(std::span(data)).first(kUnitBytes));
    hash_hole(hasher, hole_units);
    hasher.update(std::as_bytes(std::span(data)).subspan(kUnitBytes));
    content.checksum = hasher.digest();
    content.extents.insert(content.extents.begin() + 1, Extent{0, hole_units});
    content.size_bytes += hole_units * kUnitBytes;
    return content;
  }
  using Told = std::shared_ptr<std::optional<Kind>>;
  Told request(uint64_t ino, CatalogContent content, int priority = kOpen, uint64_t patience_ends_ms = 0) {
    pool_->contents[ino] = std::move(content);
    auto told = std::make_shared<std::optional<Kind>>();
    EXPECT_TRUE(promoter_->request(
        ino, priority, [told](const PromoteOutcome& outcome) { *told = outcome.kind; },
        priority == kWriter && patience_ends_ms == 0 ? UINT64_MAX : patience_ends_ms));
    return told;
  }
  bool step_until(const std::function<bool()>& condition) {
    return test::eventually([&] {
      if (!condition()) lane_->step(std::chrono::milliseconds(1));
      return condition();
    });
  }
  std::optional<Kind> outcome_of(const Told& told) {
    EXPECT_TRUE(step_until([&] { return told->has_value(); }));
    return *told;
  }
  uint64_t blocks(uint64_t ino) const {
    struct stat status {};
    EXPECT_EQ(::fstatat(arena_->tree_fd(), ColdFiles::name_of(ino).c_str(), &status, 0), 0);
    return static_cast<uint64_t>(status.st_blocks) * 512 / kUnitBytes;
  }
  std::string memory(uint64_t ino) const {
    return test::read_at(open(ColdFiles::name_of(ino)).get(), 0, pool_->contents.at(ino).size_bytes);
  }
  uint64_t wanted(Whose whose) { return pool_->memory_room().wanted_bytes(whose); }

  SmallStore store_;
  std::optional<ColdFiles> pool_;
  std::optional<Promoter> promoter_;
  std::optional<PromoterLane> lane_;
};

TEST_F(PromoterMemoryTest, AContentWithHolesGetsAllOfItsMemoryOrNone) {
  set_memory(5 * kUnitBytes);
  pool_->only_looks_free = kMiB;
  const UniqueFd other = make("other");
  ASSERT_TRUE(sys::allocate(other.get(), 0, 0, 2 * kUnitBytes));
  const CatalogContent content = put_with_hole(5, 100);
  const Told open = request(1, content);
  lane_->step(SmallStore::kNow);
  EXPECT_FALSE(*open) << "the evictor may make room";
  EXPECT_EQ(blocks(1), 0u) << "what its first unit got is given back";
  EXPECT_EQ(wanted(Whose::kPromotion), 5 * kUnitBytes) << "its hole needs none";
  EXPECT_GT(pool_->evictor_woken, 0);
  ASSERT_TRUE(sys::truncate(other.get(), 0));
  pool_->memory_room().room_made();
  EXPECT_EQ(outcome_of(open), Kind::kPromoted);
  EXPECT_EQ(blocks(1), 5u);
  EXPECT_TRUE(memory(1) == store_.bytes_of(content));
  EXPECT_EQ(wanted(Whose::kPromotion), 0u);
}

TEST_F(PromoterMemoryTest, WhatIsLargerThanThePoolWaitsForNothing) {
  set_memory(4 * kUnitBytes);
  EXPECT_EQ(outcome_of(request(1, put(5), kWriter)), Kind::kIntactOnDisk);
  EXPECT_EQ(pool_->evictor_woken, 0);
  EXPECT_EQ(blocks(1), 0u);
  EXPECT_EQ(outcome_of(request(2, put(4))), Kind::kPromoted) << "it is as large as the pool";
  EXPECT_EQ(blocks(2), 4u);
}

TEST_F(PromoterMemoryTest, WhatNeedsNoMemoryGetsItInAFullPool) {
  fill_up();
  EXPECT_EQ(outcome_of(request(1, put(0))), Kind::kPromoted);
  Hasher hasher;
  hash_hole(hasher, 100);
  const CatalogContent hole{
      .size_bytes = 100 * kUnitBytes, .checksum = hasher.digest(), .version = 1, .extents = {{0, 100}}};
  EXPECT_EQ(outcome_of(request(2, hole)), Kind::kPromoted);
  EXPECT_EQ(blocks(2), 0u);
  EXPECT_EQ(pool_->evictor_woken, 0);
}

TEST_F(PromoterMemoryTest, AFileThatCannotBeGivenMemoryIsNotPromoted) {
  const auto fails_with = [&](CatalogContent content, int error) {
    pool_->ended.clear();
    return outcome_of(request(1, std::move(content))) == Kind::kFailed &&
           pool_->ended[1].finding == (Finding{Finding::Kind::kUnreadable, error}) &&
           promoter_->arriving_bytes() == 0;
  };
  pool_->flags = O_RDONLY;
  EXPECT_TRUE(fails_with(put(1), EBADF));
  EXPECT_TRUE(fails_with(put_with_hole(2, 1), EBADF));
  EXPECT_EQ(store_.disk().counts().reads, 0u);
  set_memory(4 * kMiB);
  pool_->flags = O_WRONLY;
  const uint64_t large = kBufferedBytesMax / kUnitBytes + 1;
  EXPECT_TRUE(fails_with(put(large), EACCES)) << "its pages cannot be mapped";
  EXPECT_EQ(outcome_of(request(2, put(large - 1))), Kind::kPromoted) << "a small one comes by a buffer";
  EXPECT_TRUE(lane_->idle());
}

TEST_F(PromoterMemoryTest, BytesArriveUntilTheyAreThere) {
  const CatalogContent content = put_with_hole(3, 10);
  store_.disk().hold();
  const Told open = request(1, content);
  ASSERT_TRUE(step_until([&] { return promoter_->arriving_bytes() > 0; }));
  EXPECT_EQ(promoter_->arriving_bytes(), 3 * kUnitBytes);
  EXPECT_FALSE(*open);
  store_.disk().release_all();
  EXPECT_EQ(outcome_of(open), Kind::kPromoted);
  EXPECT_EQ(promoter_->arriving_bytes(), 0u);
}

TEST_F(PromoterMemoryTest, WhatAllDemandTogetherIsLimited) {
  const auto ask = [&](uint64_t ino, uint64_t patience_ends_ms) {
    // Nothing reads it, because no memory comes for it.
    return request(ino, {.size_bytes = 200 * kMiB, .checksum = {}, .extents = {{1, 200 * kMiB / kUnitBytes}}},
                   kWriter, patience_ends_ms);
  };
  set_memory(1024 * kMiB);
  pool_->promised = arena_->usage().free_bytes;  // all of the rest
  const Told first = ask(1, now_coarse_ms() + 200), second = ask(2, 0), third = ask(3, 0);
  lane_->step(SmallStore::kNow);
  EXPECT_EQ(wanted(Whose::kWriter), 400 * kMiB) << "256 MiB or more: the third adds nothing";
  EXPECT_EQ(outcome_of(first), Kind::kNoMemory);
  ASSERT_TRUE(step_until([&] { return pool_->ended.contains(1); })) << "nobody waits for it";
  EXPECT_EQ(pool_->ended[1].kind, Kind::kNoMemory);
  EXPECT_EQ(store_.disk().counts().reads, 0u) << "its copy is not looked at";
  ASSERT_TRUE(step_until([&] { return wanted(Whose::kWriter) == 400 * kMiB; })) << "now it is its turn";
  EXPECT_FALSE(*second || *third);
}

TEST_F(PromoterMemoryTest, OneThatAWriterJoinsComesBeforeThoseThatWait) {
  set_memory(3 * kUnitBytes);
  fill_up();
  const Told open = request(1, put(2)), joined = request(2, put(2));
  lane_->step(SmallStore::kNow);
  EXPECT_EQ(wanted(Whose::kPromotion), 4 * kUnitBytes);
  const Told writer = request(2, pool_->contents[2], kWriter);
  ASSERT_TRUE(step_until([&] { return wanted(Whose::kWriter) == 2 * kUnitBytes; }));
  EXPECT_LE(wanted(Whose::kPromotion), 2 * kUnitBytes);
  empty();
  pool_->memory_room().room_made();
  EXPECT_EQ(outcome_of(writer), Kind::kPromoted);
  EXPECT_EQ(pool_->begun[2], 1) << "it is raised where it waits";
  EXPECT_EQ(outcome_of(open), Kind::kIntactOnDisk) << "one unit is left";
  EXPECT_EQ(blocks(2), 2u);
  EXPECT_EQ(blocks(1), 0u);
}

TEST_F(PromoterMemoryTest, AReaderTakesNothingThatIsPromised) {
  set_memory(2 * kUnitBytes);
  pool_->promised = kUnitBytes;
  const Told open = request(1, put(2));
  lane_->step(SmallStore::kNow);
  EXPECT_FALSE(*open);
  pool_->memory_room().nothing_to_evict(Whose::kWriter);
  EXPECT_EQ(outcome_of(open), Kind::kIntactOnDisk);
  EXPECT_EQ(blocks(1), 0u);
  EXPECT_EQ(outcome_of(request(2, put(1))), Kind::kPromoted) << "the rest is for all";
}

TEST_F(PromoterMemoryTest, AnOpenHasPatienceAndAPrefetchNone) {
  fill_up();
  const CatalogContent content = put(2);
  const uint64_t begun_ms = now_coarse_ms();
  const Told open = request(1, content), prefetch = request(2, content, 0);
  EXPECT_EQ(outcome_of(prefetch), Kind::kNoMemory);
  EXPECT_EQ(outcome_of(open), Kind::kIntactOnDisk);
  EXPECT_GT(now_coarse_ms() - begun_ms, 500u) << "the evictor had said nothing";
  EXPECT_EQ(wanted(Whose::kPromotion), 0u);
}

TEST_F(PromoterMemoryTest, AnOrderThatLacksMemoryEndsWhatIsBehindIt) {
  set_memory(4 * kUnitBytes);
  std::vector<Told> told;
  std::vector<Promoter::Order> orders;
  for (const uint64_t ino : {1, 2, 3}) {
    pool_->contents[ino] = put(ino == 3 ? 1 : 3);
    told.push_back(std::make_shared<std::optional<Kind>>());
    orders.push_back({ino, -static_cast<int>(ino),
                      [its = told.back()](const PromoteOutcome& outcome) { *its = outcome.kind; }});
  }
  std::ranges::reverse(orders);
  promoter_->order(std::move(orders), {});
  const Told open = request(3, pool_->contents[3]);
  const Told guess = request(4, put(1), -5000);
  EXPECT_EQ(outcome_of(told[0]), Kind::kPromoted);
  EXPECT_EQ(outcome_of(told[1]), Kind::kNoMemory) << "one unit is left at most";
  EXPECT_EQ(outcome_of(told[2]), Kind::kPromoted) << "an open has joined it";
  EXPECT_EQ(outcome_of(open), Kind::kPromoted);
  EXPECT_EQ(outcome_of(guess), Kind::kNoMemory);
  EXPECT_FALSE(promoter_->is_ordered(1)) << "the order has ended";
}

// What it found and brought is not spared any more then, and would be evicted for the sake of what is over.
TEST_F(PromoterMemoryTest, AnOrderDemandsNoMemoryWhenItHasEnded) {
  set_memory(4 * kUnitBytes);
  pool_->kept_from_orders = kUnitBytes;
  std::vector<uint64_t> demands;
  std::vector<Promoter::Order> orders;
  for (const uint64_t ino : {1, 2, 3}) {
    pool_->contents[ino] = put(2);
    orders.push_back({ino, -static_cast<int>(ino), [&](const PromoteOutcome&) {
                        if (!promoter_->is_ordered(1)) demands.push_back(wanted(Whose::kPromotion));
                      }});
  }
  promoter_->order(std::move(orders), {});
  ASSERT_TRUE(step_until([&] { return wanted(Whose::kPromotion) == 5 * kUnitBytes; }));
  EXPECT_EQ(promoter_->orders_ended(), 0u);
  pool_->memory_room().nothing_to_evict(Whose::kPromotion);
  ASSERT_TRUE(step_until([&] { return !demands.empty(); }));
  EXPECT_EQ(demands, std::vector<uint64_t>{0}) << "of the last of them";
  EXPECT_EQ(promoter_->orders_ended(), 1u);
}

}  // namespace kvcachefs::promoter_memory_test
