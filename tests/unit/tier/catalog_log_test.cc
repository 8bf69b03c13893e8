// The catalog log: which changes get to the catalog, when a waiter is told, and what a failing disk leaves.
#include "tier/catalog/catalog_log.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <optional>

#include "base/clock.h"
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
      if (during_write_) std::exchange(during_write_, {})();
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
  std::function<void()> during_write_;
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

// The catalog is with the disk while the extents come back.
TEST_F(CatalogLogTest, WhoeverRatherFailsIsToldOfADiskThatHangs) {
  int told = -1;
  std::shared_ptr<int> patient;
  during_write_ = [&] {
    patient = wait();
    log_->when_it_takes_more([&](Result<void> outcome) { told = outcome ? 0 : outcome.error().code; });
    log_->tell_of_hang(now_coarse_ms() + CatalogLog::kHangMs / 2);
    EXPECT_EQ(told, -1);
    log_->tell_of_hang(now_coarse_ms() + CatalogLog::kHangMs);
    EXPECT_EQ(told, ETIMEDOUT);
    EXPECT_EQ(*patient, -1) << "is to know of the change";
  };
  log_->append(file(2, {{1, 1}}));
  log_->append({DropName{kRoot, "f2"}});
  log_->step(kNow);
  ASSERT_EQ(told, ETIMEDOUT);
  log_->when_it_takes_more([&](Result<void> outcome) { told = outcome ? 0 : outcome.error().code; });
  log_->tell_of_hang(now_coarse_ms() + 2 * CatalogLog::kHangMs);
  EXPECT_EQ(told, ETIMEDOUT) << "nothing is with the disk by now";
  log_->step(kNow);
  EXPECT_EQ(told, 0);
  EXPECT_EQ(*patient, 0);
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

TEST_F(CatalogLogTest, ANodeThatIsChangedAgainWaitsOnce) {
  const auto node = [](uint32_t mode, size_t bytes) {
    CatalogNode changed = file_node(2);
    changed.mode = S_IFREG | mode;
    changed.xattrs = {{"user.a", std::string(bytes, 'x')}};
    return changed;
  };
  log_->append(file(2, {{1, 1}}));
  const auto before = wait();
  for (uint32_t i = 0; i < 1000; ++i) log_->append({PutNode{node(i % 0777, 60'000)}});
  EXPECT_FALSE(log_->is_full());
  log_->append({DropName{kRoot, "f2"}, PutName{kRoot, "g2", 2}});
  log_->append({PutNode{node(0640, 5)}});
  log_->append({PutNode{file_node(3)}, PutName{kRoot, "f3", 3}, PutContent{3, content_of({{2, 1}})}});
  log_->step(kNow);
  EXPECT_EQ(*before, 0);
  EXPECT_TRUE(log_->idle());
  const auto found = test::node_in(*catalog_, 2);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->mode, S_IFREG | 0640u);
  EXPECT_EQ(found->xattrs.at(0).second.size(), 5u);
  // What was taken does not wait any more.
  log_->append({PutNode{node(0600, 6)}});
  EXPECT_FALSE(log_->idle());
  EXPECT_EQ(told(), 0);
  EXPECT_EQ(test::node_in(*catalog_, 2)->mode, S_IFREG | 0600u);
}

TEST_F(CatalogLogTest, AttributesThatChangeLeaveTheXattrsThatWait) {
  CatalogNode node = file_node(2);
  node.xattrs = {{"user.a", "before"}};
  log_->append({PutNode{node}, PutName{kRoot, "f2", 2}, PutContent{2, content_of({{1, 1}})}});
  CatalogNode attributes = file_node(2);
  attributes.uid = 7;
  log_->append({PutNode{attributes, true}});
  ASSERT_EQ(told(), 0);
  EXPECT_EQ(test::node_in(*catalog_, 2)->uid, 7u);
  EXPECT_EQ(test::node_in(*catalog_, 2)->xattrs, node.xattrs);
  attributes.uid = 8;
  log_->append({PutNode{attributes, true}});
  node.xattrs = {{"user.a", "after"}};
  log_->append({PutNode{node}});
  attributes.uid = 9;
  log_->append({PutNode{attributes, true}});
  log_->append({PutNode{file_node(3), true}});
  ASSERT_EQ(told(), 0);
  EXPECT_EQ(test::node_in(*catalog_, 2)->uid, 9u);
  EXPECT_EQ(test::node_in(*catalog_, 2)->xattrs, node.xattrs);
  EXPECT_FALSE(test::node_in(*catalog_, 3)) << "there is none";
}

// The names before it were the node's last: a node put in their place would go with them.
TEST_F(CatalogLogTest, ANodeThatComesBackIsPutAfterItsNamesWent) {
  log_->append(file(2, {{1, 1}}));
  log_->append(std::vector<CatalogChange>(8192, DropName{kRoot, "f2"}));  // the end of a transaction
  log_->append({PutNode{file_node(2)}, PutName{kRoot, "again", 2}, PutContent{2, content_of({{2, 1}})}});
  const auto after = wait();
  log_->step(kNow);
  EXPECT_FALSE(has(2));
  EXPECT_EQ(*after, -1);
  log_->step(kNow);
  EXPECT_EQ(*after, 0);
  EXPECT_TRUE(has(2));
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
