// Whose the space on a disk is: of contents that are claimed, written, read or on their way out.
#include "tier/disk/spill_store.h"

#include <gtest/gtest.h>

#include "tests/support/catalogs.h"
#include "tests/support/small_store.h"

namespace kvcachefs::spill_store_test {

using test::file_node;
using test::SmallStore;

constexpr uint64_t kUnits = 16;
constexpr uint64_t kUnitBytes = SmallStore::kUnitBytes;

class SpillStoreTest : public ::testing::Test {
 protected:
  static CatalogContent content(std::vector<Extent> extents, uint64_t size_bytes) {
    CatalogContent made = test::content_of(std::move(extents));
    made.size_bytes = size_bytes;
    return made;
  }
  uint64_t free_units() { return store_->space().free_units(); }
  void commit(std::vector<CatalogChange> changes) {
    store_->log().append(std::move(changes));
    store_->log().step(SmallStore::kNow);
    ASSERT_TRUE(store_->log().idle());
  }
  // A file in the catalog with a content of this many units.
  CatalogContent stored(uint64_t id, uint64_t units) {
    CatalogContent made = content(*store_->allocate(units * kUnitBytes), units * kUnitBytes);
    commit({PutNode{file_node(id)}, PutName{kCatalogRoot, "f", id}, PutContent{id, made}});
    return made;
  }

  SmallStore store_{kUnits};
};

TEST_F(SpillStoreTest, TheSuperblocksUnitIsNeverGiven) {
  const auto all = store_->allocate((kUnits - 1) * kUnitBytes);
  ASSERT_TRUE(all);
  for (const Extent& extent : *all) EXPECT_GT(extent.start, 0u);
  EXPECT_FALSE(store_->allocate(1));
  EXPECT_TRUE(store_->allocate(0)) << "nothing is always to be had";
}

TEST_F(SpillStoreTest, SizesRoundUpAndMayBeAnyNumber) {
  EXPECT_EQ(store_->units_for(0), 0u);
  EXPECT_EQ(store_->units_for(1), 1u);
  EXPECT_EQ(store_->units_for(kUnitBytes + 1), 2u);
  EXPECT_EQ(store_->units_for(UINT64_MAX), UINT64_MAX / kUnitBytes + 1);
}

TEST_F(SpillStoreTest, AContentIsClaimedWholeOrNotAtAll) {
  EXPECT_TRUE(store_->claim(content({{3, 2}, {0, 4}, {8, 1}}, 7 * kUnitBytes)));
  EXPECT_EQ(free_units(), kUnits - 4);
  EXPECT_FALSE(store_->claim(content({{10, 1}, {4, 1}}, 2 * kUnitBytes))) << "a unit of the other";
  EXPECT_FALSE(store_->claim(content({{10, 1}}, 2 * kUnitBytes))) << "too few extents";
  EXPECT_FALSE(store_->claim(content({{10, 3}}, 2 * kUnitBytes))) << "too many units";
  EXPECT_FALSE(store_->claim(content({{kUnits - 1, 2}}, 2 * kUnitBytes))) << "beyond the end";
  EXPECT_FALSE(store_->claim(content({{0, UINT64_MAX / kUnitBytes + 1}}, UINT64_MAX))) << "no file's size";
  EXPECT_EQ(free_units(), kUnits - 4);
  EXPECT_TRUE(store_->claim(content({{10, 1}}, 1)));
}

TEST_F(SpillStoreTest, WhatIsGivenBackIsFreeAndAHoleIsNoSpace) {
  const auto extents = store_->allocate(2 * kUnitBytes);
  ASSERT_TRUE(extents);
  std::vector<Extent> with_hole = *extents;
  with_hole.insert(with_hole.begin(), Extent{0, 5});
  store_->give_back(with_hole);
  EXPECT_EQ(free_units(), kUnits - 1);
}

TEST_F(SpillStoreTest, ADroppedContentIsFreeAfterTheCommit) {
  const CatalogContent made = stored(2, 3);
  store_->expect_back(made.extents);
  EXPECT_EQ(store_->leaving_units(), 3u);
  EXPECT_EQ(free_units(), kUnits - 4);
  commit({DropName{kCatalogRoot, "f"}});
  EXPECT_EQ(store_->leaving_units(), 0u);
  EXPECT_EQ(free_units(), kUnits - 1);
}

TEST_F(SpillStoreTest, AContentThatIsReadStaysUntilItsLastReader) {
  const CatalogContent made = stored(2, 3);
  store_->hold(made);
  store_->hold(made);
  commit({DropName{kCatalogRoot, "f"}});
  store_->let_go(made);
  EXPECT_EQ(free_units(), kUnits - 4);
  store_->let_go(made);
  EXPECT_EQ(free_units(), kUnits - 1);
}

TEST_F(SpillStoreTest, AContentThatWasOnlyReadStaysTheCatalogs) {
  const CatalogContent made = stored(2, 3);
  store_->hold(made);
  store_->let_go(made);
  EXPECT_EQ(free_units(), kUnits - 4);
}

TEST_F(SpillStoreTest, AReaderOfAContentThatTheCatalogHasDroppedFreesIt) {
  const CatalogContent made = content({{5, 2}, {0, 1}}, 3 * kUnitBytes);
  ASSERT_TRUE(store_->claim(made));
  store_->hold_dropped(made);
  EXPECT_EQ(free_units(), kUnits - 3);
  store_->let_go(made);
  EXPECT_EQ(free_units(), kUnits - 1);
}

TEST_F(SpillStoreTest, NumbersAreGivenOnce) {
  const uint64_t first = store_->new_id();
  EXPECT_GT(first, kCatalogRoot);
  EXPECT_EQ(store_->new_id(), first + 1);
  store_->saw_id(first + 10);
  EXPECT_EQ(store_->new_id(), first + 11);
  store_->saw_id(first);
  EXPECT_EQ(store_->new_id(), first + 12);
}

}  // namespace kvcachefs::spill_store_test
