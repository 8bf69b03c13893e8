// Each kind of damage in turn must be found, named and discarded, and nothing else with it.
#include "tier/catalog/catalog_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "base/checksum.h"
#include "tests/support/catalogs.h"
#include "tests/support/disks.h"
#include "tests/support/faulty_disk.h"
#include "tests/support/files.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs::catalog_check_test {

using test::directory_node;
using test::file_node;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kUnitBytes = 65536;
constexpr uint64_t kUnits = 256;

// /d/a (2.5 units, two extents), /d/b (an odd size below a unit), /c (5 MiB), /empty
class CatalogCheckTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Catalog::open(place_ / "catalog");
    ASSERT_TRUE(opened) << opened.error().message;
    catalog_ = std::move(*opened);
    commit({PutNode{directory_node(2)}, PutName{kCatalogRoot, "d", 2}});
    store(3, 2, "a", kUnitBytes * 5 / 2, {{10, 1}, {20, 2}});
    store(4, 2, "b", 4097, {{12, 1}});
    store(5, kCatalogRoot, "c", 5 << 20, {{100, 50}, {30, 30}});
    store(6, kCatalogRoot, "empty", 0, {});
  }
  void commit(const std::vector<CatalogChange>& changes) {
    const auto committed = catalog_->commit(changes);
    ASSERT_TRUE(committed) << committed.error().message;
  }
  void store(uint64_t id, uint64_t parent, const std::string& name, uint64_t size_bytes,
             const std::vector<Extent>& extents) {
    commit(
        {PutNode{file_node(id)}, PutName{parent, name, id}, PutContent{id, write(id, size_bytes, extents)}});
  }
  CatalogContent write(uint64_t seed, uint64_t size_bytes, const std::vector<Extent>& extents) {
    const std::string bytes = test::pattern(seed, size_bytes);
    uint64_t at = 0;
    for (const Extent& extent : extents) {
      test::AlignedMemory memory(extent.count * kUnitBytes);
      const uint64_t used = std::min(bytes.size() - at, extent.count * kUnitBytes);
      std::copy_n(reinterpret_cast<const std::byte*>(bytes.data()) + at, used, memory.all().data());
      EXPECT_EQ(test::write_blocks(disk_, extent.start * kUnitBytes, memory.all()), 0);
      at += used;
    }
    return {.size_bytes = size_bytes,
            .checksum = checksum_of(std::as_bytes(std::span(bytes))),
            .version = 1,
            .extents = extents};
  }
  CheckReport check(bool data, bool repair) {
    auto report = check_catalog(*catalog_, {.unit_bytes = kUnitBytes,
                                            .size_units = kUnits,
                                            .device = data ? &disk_ : nullptr,
                                            .repair = repair});
    EXPECT_TRUE(report) << report.error().message;
    return report ? *report : CheckReport{};
  }
  // expect_found() expects exactly this problem, twice because the first check does not repair. After the
  // second check `id` is gone and the other files are whole.
  void expect_found(bool data, uint64_t id, const std::string& path, const std::string& what) {
    for (const bool repair : {false, true}) {
      const CheckReport report = check(data, repair);
      ASSERT_EQ(report.problem_count, 1);
      EXPECT_EQ(report.problems[0].id, id);
      EXPECT_EQ(report.problems[0].path, path);
      EXPECT_THAT(report.problems[0].what, HasSubstr(what));
      EXPECT_EQ(report.repaired, repair);
      EXPECT_EQ(report.files, 3);
    }
    const CheckReport after = check(true, false);
    EXPECT_TRUE(after.whole());
    EXPECT_EQ(after.files, 3);
    EXPECT_FALSE(test::content_in(*catalog_, id).has_value());
  }

  test::DiskDirectory place_;
  test::FaultyDisk disk_{{.size_bytes = kUnits * kUnitBytes}};
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(CatalogCheckTest, AWholeOneIsWhole) {
  for (const bool data : {false, true}) {
    const CheckReport report = check(data, true);
    EXPECT_TRUE(report.whole());
    EXPECT_FALSE(report.repaired);
    EXPECT_EQ(report.nodes, 5);
    EXPECT_EQ(report.files, 4);
    EXPECT_EQ(report.content_bytes, kUnitBytes * 5 / 2 + 4097 + (5 << 20));
    EXPECT_EQ(report.used_units, 1 + 3 + 1 + 80);
    EXPECT_EQ(report.free_units, kUnits - 85);
  }
}

TEST_F(CatalogCheckTest, TellsItsProgress) {
  std::vector<uint64_t> done;
  uint64_t all = 0;
  const auto report = check_catalog(*catalog_, {.unit_bytes = kUnitBytes,
                                                .size_units = kUnits,
                                                .device = &disk_,
                                                .progress = [&](uint64_t done_bytes, uint64_t all_bytes) {
                                                  done.push_back(done_bytes);
                                                  all = all_bytes;
                                                }});
  ASSERT_TRUE(report);
  EXPECT_EQ(done.size(), 4);
  EXPECT_EQ(done.back(), all);
  EXPECT_EQ(all, report->content_bytes);
}

TEST_F(CatalogCheckTest, ABitThatFlipped) {
  disk_.rot(21 * kUnitBytes + 100, 1);
  EXPECT_TRUE(check(false, false).whole()) << "what is not read is not known";
  expect_found(true, 3, "d/a", "checksum");
}

TEST_F(CatalogCheckTest, ABitBeyondTheEndOfTheContentIsNothing) {
  disk_.rot(12 * kUnitBytes + 4097, 1000);
  disk_.rot(21 * kUnitBytes + kUnitBytes / 2, 1);
  EXPECT_TRUE(check(true, false).whole());
}

TEST_F(CatalogCheckTest, APlaceThatCannotBeRead) {
  disk_.fail_place(120 * kUnitBytes, 4096);
  for (const bool repair : {false, true}) {
    const CheckReport report = check(true, repair);
    ASSERT_EQ(report.problem_count, 1);
    EXPECT_EQ(report.unreadable, 1);
    EXPECT_EQ(report.problems[0].path, "c");
    EXPECT_THAT(report.problems[0].what, HasSubstr("cannot be read now"));
    EXPECT_FALSE(report.repaired) << "the disk may give it again";
    EXPECT_EQ(report.files, 4);
  }
}

TEST_F(CatalogCheckTest, AnExtentBeyondTheDisk) {
  commit({PutContent{4, write(4, 4097, {{12, 1}})}});
  CatalogContent content = *test::content_in(*catalog_, 4);
  content.extents = {{kUnits, 1}};
  commit({PutContent{4, content}});
  expect_found(true, 4, "d/b", "beyond the disk's 256 units");
}

TEST_F(CatalogCheckTest, AHoleWhereDataWas) {
  CatalogContent content = *test::content_in(*catalog_, 4);
  content.extents = {{0, 1}};
  commit({PutContent{4, content}});
  expect_found(true, 4, "d/b", "checksum");
}

TEST_F(CatalogCheckTest, HolesOfMoreUnitsThanThereAreNumbers) {
  CatalogContent content = *test::content_in(*catalog_, 4);
  content.extents = {{0, UINT64_MAX}, {0, 2}};
  commit({PutContent{4, content}});
  expect_found(false, 4, "d/b", "units, it has");
}

// The hole is as large as the largest file, and the disk is not read for it.
TEST_F(CatalogCheckTest, OneLargeHole) {
  CatalogContent content{.size_bytes = INT64_MAX, .checksum = {}, .version = 1, .extents = {}};
  content.extents = {{0, INT64_MAX / kUnitBytes + 1}};
  Hasher hasher;
  hash_hole(hasher, content.extents[0].count);
  content.checksum = hasher.digest();
  commit({PutContent{4, content}});
  EXPECT_TRUE(check(true, false).whole());
  content.size_bytes += 1;
  commit({PutContent{4, content}});
  expect_found(false, 4, "d/b", "units");
}

TEST_F(CatalogCheckTest, ASizeThatDoesNotFitTheExtents) {
  for (const uint64_t size : {uint64_t{0}, kUnitBytes + 1, UINT64_MAX}) {
    CatalogContent content = *test::content_in(*catalog_, 4);
    content.size_bytes = size;
    commit({PutContent{4, content}});
    const CheckReport report = check(true, false);
    ASSERT_EQ(report.problem_count, 1);
    EXPECT_THAT(report.problems[0].what, HasSubstr("units, it has 1"));
  }
  expect_found(true, 4, "d/b", "units, it has 1");
}

TEST_F(CatalogCheckTest, OfTwoInOnePlaceTheFirstStaysIfNobodyLooks) {
  CatalogContent content = *test::content_in(*catalog_, 4);
  content.extents = {{21, 1}};  // the end of d/a
  commit({PutContent{4, content}});
  expect_found(false, 4, "d/b", "21+1 is another's too");
}

TEST_F(CatalogCheckTest, OfTwoInOnePlaceTheOneWithItsBytesStays) {
  commit({PutContent{4, write(4, 4097, {{21, 1}})}});
  expect_found(true, 3, "d/a", "checksum");
  EXPECT_TRUE(test::content_in(*catalog_, 4).has_value());
}

TEST_F(CatalogCheckTest, WhatTheCatalogItselfHasLost) {
  commit({PutNode{file_node(7)}, PutName{2, "new", 7}, PutNode{file_node(50)}});
  for (const bool repair : {false, true}) {
    const CheckReport report = check(true, repair);
    EXPECT_EQ(report.problem_count, 2);
    EXPECT_EQ(report.problems[0].id, 7);
    EXPECT_EQ(report.problems[0].what, "file without content");
    EXPECT_EQ(report.problems[1].id, 50);
    EXPECT_EQ(report.problems[1].what, "node without a name");
  }
  EXPECT_TRUE(check(true, false).whole());
  EXPECT_EQ(test::id_in(*catalog_, 2, "new"), std::nullopt);
}

TEST_F(CatalogCheckTest, ABadFileGoesWithAllItsNames) {
  commit({PutName{kCatalogRoot, "link", 3}});
  disk_.rot(10 * kUnitBytes, 1);
  EXPECT_EQ(check(true, true).problem_count, 1);
  EXPECT_EQ(test::id_in(*catalog_, kCatalogRoot, "link"), std::nullopt);
  EXPECT_EQ(test::id_in(*catalog_, 2, "a"), std::nullopt);
  EXPECT_FALSE(test::node_in(*catalog_, 3).has_value());
  EXPECT_TRUE(check(true, false).whole());
}

TEST_F(CatalogCheckTest, ManyOfEverything) {
  // The files have sizes around pieces and units and lie in shuffled places; the check reads them with more
  // requests than the disk takes at a time.
  ASSERT_TRUE(catalog_->clear());
  test::Random random(3);
  uint64_t unit = 1;
  std::set<uint64_t> bad;
  uint64_t files = 0;
  for (uint64_t id = 2;; ++id, ++files) {
    std::vector<Extent> extents;
    uint64_t units = 0;
    for (uint64_t count = 1 + random.below(3); count > 0; --count) {
      extents.push_back({unit, 1 + random.below(20)});
      unit += extents.back().count + random.below(2);
      units += extents.back().count;
    }
    if (unit > kUnits) break;
    std::ranges::reverse(extents);
    store(id, kCatalogRoot, std::to_string(id), units * kUnitBytes - random.below(kUnitBytes - 4096),
          extents);
    if (random.one_in(3)) {
      disk_.rot(extents[random.below(extents.size())].start * kUnitBytes, 4096);
      bad.insert(id);
    }
  }
  const CheckReport report = check(true, true);
  std::set<uint64_t> found;
  for (const CheckProblem& problem : report.problems) found.insert(problem.id);
  EXPECT_EQ(found, bad);
  EXPECT_EQ(report.files, files - bad.size());
  EXPECT_TRUE(check(true, false).whole());
}

TEST_F(CatalogCheckTest, ADiskWithoutUnitsIsNone) {
  EXPECT_EQ(check_catalog(*catalog_, {}).error().code, EINVAL);
}

}  // namespace kvcachefs::catalog_check_test
