// The layout of a content: where the holes of a file are, and where its other bytes lie on the disk.
#include "tier/catalog/content_layout.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::content_layout_test {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr uint64_t kUnitBytes = 65536;
constexpr uint64_t kAnywhere = 1;

class ContentLayoutTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
    tmpfs_ = std::make_unique<test::PlainTmpfs>("size=512M");
    fd_ = UniqueFd(::open((tmpfs_->path() + "/f").c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_TRUE(fd_);
  }
  void write(uint64_t at, size_t bytes) {
    const std::string text = test::pattern(at, bytes);
    ASSERT_EQ(::pwrite(fd_.get(), text.data(), bytes, static_cast<off_t>(at)), static_cast<ssize_t>(bytes));
  }
  void set_size(uint64_t bytes) { ASSERT_EQ(::ftruncate(fd_.get(), static_cast<off_t>(bytes)), 0); }
  ContentLayout layout(uint64_t size) {
    auto found = layout_of_file(fd_.get(), size, kUnitBytes);
    EXPECT_TRUE(found);
    return found ? *found : ContentLayout{};
  }
  std::unique_ptr<test::PlainTmpfs> tmpfs_;
  UniqueFd fd_;
};

TEST_F(ContentLayoutTest, AFileOfNothing) {
  EXPECT_THAT(layout(0).runs, IsEmpty());
  set_size(1);
  EXPECT_THAT(layout(1).runs, ElementsAre(Extent{0, 1}));
  set_size(INT64_MAX);
  EXPECT_THAT(layout(INT64_MAX).runs, ElementsAre(Extent{0, uint64_t{1} << 47}));
  EXPECT_EQ(layout(INT64_MAX).data_units, 0);
}

TEST_F(ContentLayoutTest, AUnitWithAByteIsData) {
  write(10 * kUnitBytes + 9, 1);
  write(50 * kUnitBytes - 1, 2);
  set_size(100 * kUnitBytes);
  const ContentLayout found = layout(100 * kUnitBytes);
  EXPECT_THAT(found.runs, ElementsAre(Extent{0, 10}, Extent{kAnywhere, 1}, Extent{0, 38},
                                      Extent{kAnywhere, 2}, Extent{0, 49}));
  EXPECT_EQ(found.data_units, 3);
  EXPECT_EQ(found.zero_units, 0);
}

TEST_F(ContentLayoutTest, WhatIsAllocatedAndNotWrittenIsData) {
  ASSERT_EQ(::fallocate(fd_.get(), 0, 10 * kUnitBytes, 20 * kUnitBytes), 0);
  set_size(100 * kUnitBytes);
  EXPECT_THAT(layout(100 * kUnitBytes).runs,
              ElementsAre(Extent{0, 10}, Extent{kAnywhere, 20}, Extent{0, 70}));
}

// Memory beyond the end, as much as the holes lack, makes no file whole.
TEST_F(ContentLayoutTest, AFileIsWholeIfNoPageOfItIsMissing) {
  const uint64_t size = 10 * kUnitBytes + 5;
  for (uint64_t unit = 0; unit <= 10; ++unit) write(unit * kUnitBytes, 5);
  ASSERT_EQ(::fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 20 * kUnitBytes, 20 * kUnitBytes), 0);
  EXPECT_EQ(layout(size).data_units, 11u);
  EXPECT_FALSE(layout(size).is_whole);
  for (uint64_t unit = 0; unit < 9; ++unit) write(unit * kUnitBytes, kUnitBytes);
  EXPECT_FALSE(layout(size).is_whole);
  write(9 * kUnitBytes, kUnitBytes);
  EXPECT_TRUE(layout(size).is_whole);
}

TEST_F(ContentLayoutTest, CutShortMeanwhile) {
  write(0, 100);
  EXPECT_THAT(layout(10 * kUnitBytes).runs, ElementsAre(Extent{kAnywhere, 1}, Extent{0, 9}));
}

TEST_F(ContentLayoutTest, SmallerHolesGoWhereThereAreTooMany) {
  // The file has holes of one unit and of three units.
  const uint64_t pieces = 3 * kMostHoles / 2;
  for (uint64_t i = 0; i < pieces; ++i) write((i / 2 * 6 + i % 2 * 2) * kUnitBytes, 1);
  const uint64_t size = pieces / 2 * 6 * kUnitBytes;
  set_size(size);
  const ContentLayout found = layout(size);
  EXPECT_EQ(found.runs.size(), pieces);
  EXPECT_EQ(found.zero_units, pieces / 2);
  EXPECT_EQ(found.data_units, pieces / 2 * 3);
  EXPECT_EQ(found.runs[0], (Extent{kAnywhere, 3}));
  EXPECT_EQ(found.runs[1], (Extent{0, 3}));
}

TEST(ContentLayout, IsLaidIntoAnySpace) {
  const ContentLayout layout{.runs = {{0, 5}, {kAnywhere, 7}, {0, 1}, {kAnywhere, 3}}, .data_units = 10};
  const std::vector<Extent> extents = lay_out(layout, std::vector<Extent>{{20, 2}, {40, 8}});
  EXPECT_THAT(extents, ElementsAre(Extent{0, 5}, Extent{20, 2}, Extent{40, 5}, Extent{0, 1}, Extent{45, 3}));
  EXPECT_TRUE(has_layout(extents, layout));
  EXPECT_FALSE(has_layout(std::span(extents).first(4), layout));
  EXPECT_FALSE(has_layout(std::vector<Extent>{{20, 16}}, layout));
  EXPECT_TRUE(has_layout({}, layout_without_holes(0)));
  EXPECT_TRUE(has_layout(std::vector<Extent>{{4, 1}, {9, 2}}, layout_without_holes(3)));
}

TEST(ContentLayout, DataAndHolesOfAContent) {
  const CatalogContent content{.size_bytes = 9 * kUnitBytes + 10,
                               .checksum = {},
                               .version = 0,
                               .extents = {{0, 2}, {7, 1}, {9, 1}, {0, 5}, {20, 1}}};
  EXPECT_EQ(data_bytes_of(content, kUnitBytes), 2 * kUnitBytes + 10);
  EXPECT_EQ(first_place_of(content.extents, kUnitBytes), 7 * kUnitBytes);
  EXPECT_EQ(seek_in_content(content, kUnitBytes, 0, true), 2 * kUnitBytes);
  EXPECT_EQ(seek_in_content(content, kUnitBytes, 0, false), 0);
  EXPECT_EQ(seek_in_content(content, kUnitBytes, 2 * kUnitBytes + 1, false), 4 * kUnitBytes);
  EXPECT_EQ(seek_in_content(content, kUnitBytes, 9 * kUnitBytes, false), content.size_bytes);
  EXPECT_EQ(seek_in_content(content, kUnitBytes, content.size_bytes, false), std::nullopt);
  CatalogContent hole{.size_bytes = INT64_MAX, .checksum = {}, .version = 0, .extents = {{0, UINT64_MAX}}};
  EXPECT_EQ(data_bytes_of(hole, kUnitBytes), 0);
  EXPECT_EQ(first_place_of(hole.extents, kUnitBytes), 0);
  hole.extents = {{0, uint64_t{1} << 47}};
  EXPECT_EQ(seek_in_content(hole, kUnitBytes, 5, true), std::nullopt);
}

}  // namespace kvcachefs::content_layout_test
