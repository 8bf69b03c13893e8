// The catalog log: which changes get to the catalog, when a waiter is told, and what a failing disk leaves.
#include "tier/catalog/catalog_log.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <optional>

#include "tests/support/catalogs.h"
#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"

namespace kvcachefs::catalog_log_test {

using test::content_of;
using test::file_node;

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr uint64_t kRoot = kCatalogRoot;

class CatalogLogTest : public ::testing::Test {
 protected:
  CatalogLogTest() {
    auto opened = Catalog::open(directory_ / "catalog", {.create = true});
    if (!opened) throw std::runtime_error(opened.error().message);
    catalog_ = std::move(*opened);
    log_.emplace(disk_, *catalog_, counters_, [this](std::span<const Extent> extents) {
      freed_.insert(freed_.end(), extents.begin(), extents.end());
    });
  }
  static std::vector<CatalogChange> file(uint64_t id, std::vector<Extent> extents) {
    return {PutNode{file_node(id)}, PutName{kRoot, "f" + std::to_string(id), id},
            PutContent{id, content_of(std::move(extents))}};
  }
  std::shared_ptr<int> wait() {
    auto answer = std::make_shared<int>(-1);
    log_->when_committed([answer](Result<void> outcome) { *answer = outcome ? 0 : outcome.error().code; });
    return answer;
  }
  // The errno that the next step gives a waiter for all changes appended so far; 0: success, -1: no answer.
  int told() {
    const auto answer = wait();
    log_->step(kNow);
    return *answer;
  }
  bool has(uint64_t id) { return test::content_in(*catalog_, id).has_value(); }

  test::DiskDirectory directory_;
  test::FaultyDisk disk_{{}};
  std::unique_ptr<Catalog> catalog_;
  PoolCounters counters_;
  std::vector<Extent> freed_;
  std::optional<CatalogLog> log_;
};

TEST_F(CatalogLogTest, ContentsFollowAFlush) {
  log_->append(file(2, {{1, 1}}));
  EXPECT_FALSE(log_->idle());
  EXPECT_EQ(told(), 0);
  EXPECT_TRUE(has(2));
  EXPECT_EQ(disk_.counts().flushes, 1u);
  EXPECT_TRUE(log_->idle());
  log_->append({DropName{kRoot, "f2"}});
  EXPECT_EQ(told(), 0);
  EXPECT_EQ(disk_.counts().flushes, 1u) << "for a name alone";
  EXPECT_EQ(freed_, (std::vector<Extent>{{1, 1}}));
}

TEST_F(CatalogLogTest, AFlushThatFailedIsTheLast) {
  log_->append(file(2, {{1, 1}}));
  ASSERT_EQ(told(), 0);
  disk_.fail_flushes(1);
  log_->append(file(3, {{2, 1}}));
  EXPECT_EQ(told(), EIO);
  EXPECT_TRUE(log_->frozen());
  // Flushes would succeed again, but what they are worth is not known, and so the catalog stays frozen.
  // Changes do not pile up.
  for (uint64_t id = 4; id < 1000; ++id) log_->append(file(id, {{id, 1}}));
  log_->append({DropName{kRoot, "f2"}});
  EXPECT_FALSE(log_->has_lost(2));
  EXPECT_TRUE(log_->has_lost(3) && log_->has_lost(999)) << "whose flush failed, and what came after it";
  EXPECT_TRUE(log_->idle());
  EXPECT_EQ(told(), EIO);
  EXPECT_TRUE(has(2)) << "as it was";
  EXPECT_FALSE(has(3));
  EXPECT_FALSE(has(4));
  EXPECT_EQ(freed_, std::vector<Extent>());
  EXPECT_EQ(disk_.counts().flushes, 2u);
  EXPECT_EQ(counters_.catalog_errors, 1u);
}

TEST_F(CatalogLogTest, WhoComesAfterTheCloseIsToldAtOnce) {
  log_->append(file(2, {{1, 1}}));
  const auto before = wait();
  log_->close();
  EXPECT_EQ(*before, 0) << "its changes are the last that are written";
  EXPECT_TRUE(has(2));
  EXPECT_EQ(*wait(), ESHUTDOWN) << "no step comes any more";
  log_->append(file(3, {{2, 1}}));
  EXPECT_TRUE(log_->idle()) << "nothing piles up";
}

TEST_F(CatalogLogTest, MoreThanMemoryShouldHoldIsDropped) {
  // The name is larger than any page of the catalog, so that the transaction fails each time.
  const std::string too_large(5000, 'x');
  log_->append({PutNode{file_node(2)}, PutName{kRoot, too_large, 2}});
  EXPECT_NE(told(), 0);
  EXPECT_FALSE(log_->frozen()) << "it may be a state directory that is full for a while";
  for (int i = 0; i < 1000; ++i) log_->append(std::vector<CatalogChange>(999, PutNode{file_node(2)}));
  EXPECT_NE(told(), 0);
  EXPECT_FALSE(log_->frozen());
  log_->append(file(3, {{1, 1}}));
  log_->append(std::vector<CatalogChange>(2000, PutNode{file_node(2)}));
  EXPECT_NE(told(), 0);
  EXPECT_TRUE(log_->frozen());
  EXPECT_FALSE(log_->has_lost(3)) << "the disk has it, and its memory may go";
  EXPECT_TRUE(log_->idle());
}

}  // namespace kvcachefs::catalog_log_test
