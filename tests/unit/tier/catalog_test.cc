// The meaning of a catalog's changes, and which directories can hold a catalog.
#include "tier/catalog/catalog.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/catalogs.h"
#include "tests/support/disks.h"

namespace kvcachefs::catalog_test {

using test::content_of;
using test::directory_node;
using test::file_node;
using test::text_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CatalogTest : public ::testing::Test {
 protected:
  void open() {
    catalog_.reset();
    auto opened = Catalog::open(directory_);
    ASSERT_TRUE(opened) << opened.error().message;
    catalog_ = std::move(*opened);
  }
  void SetUp() override { open(); }

  std::vector<Extent> commit(const std::vector<CatalogChange>& changes) {
    auto committed = catalog_->commit(changes);
    EXPECT_TRUE(committed) << committed.error().message;
    return committed ? *committed : std::vector<Extent>{};
  }
  std::optional<uint64_t> lookup(uint64_t parent, std::string_view name) {
    return test::id_in(*catalog_, parent, name);
  }
  bool has_node(uint64_t id) { return test::node_in(*catalog_, id).has_value(); }
  bool has_content(uint64_t id) { return test::content_in(*catalog_, id).has_value(); }

  void put_file(uint64_t id, uint64_t parent, const std::string& name, std::vector<Extent> extents) {
    EXPECT_THAT(commit({PutNode{file_node(id)}, PutName{parent, name, id},
                        PutContent{id, content_of(std::move(extents))}}),
                IsEmpty());
  }
  void put_directory(uint64_t id, uint64_t parent, const std::string& name) {
    EXPECT_THAT(commit({PutNode{directory_node(id)}, PutName{parent, name, id}}), IsEmpty());
  }

  test::DiskDirectory place_;
  const std::string directory_ = place_ / "catalog";
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(CatalogTest, KeepsAllOfANodeOverAReopen) {
  CatalogNode node = file_node(7, 04751);
  node.uid = 1000;
  node.gid = UINT32_MAX - 1;
  node.device = 0x123456789abc;
  node.accessed = {-5, 999'999'999};
  node.modified = {1ll << 34, 1};
  node.pinned = true;
  node.link_target = "no link, but kept";
  node.xattrs = {{"user.kv.tokens", "1,2,3"}, {"user.empty", ""}, {"user.large", std::string(65536, '\0')}};
  CatalogContent content{.size_bytes = 123456789,
                         .checksum = {1, UINT64_MAX},
                         .version = 77,
                         .extents = {{5, 3}, {1, 1}, {UINT64_MAX - 10, 10}}};
  commit({PutNode{node}, PutName{kCatalogRoot, "one", 7}, PutName{kCatalogRoot, "two", 7},
          PutContent{7, content}});
  open();
  const auto read = test::node_in(*catalog_, 7);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->mode, node.mode);
  EXPECT_EQ(read->uid, node.uid);
  EXPECT_EQ(read->gid, node.gid);
  EXPECT_EQ(read->device, node.device);
  EXPECT_EQ(read->accessed.tv_sec, -5);
  EXPECT_EQ(read->accessed.tv_nsec, 999'999'999);
  EXPECT_EQ(read->modified.tv_sec, 1ll << 34);
  EXPECT_EQ(read->modified.tv_nsec, 1);
  EXPECT_TRUE(read->pinned);
  EXPECT_EQ(read->link_target, node.link_target);
  EXPECT_EQ(read->xattrs, node.xattrs);
  const auto held = test::content_in(*catalog_, 7);
  ASSERT_TRUE(held);
  EXPECT_EQ(held->size_bytes, content.size_bytes);
  EXPECT_EQ(held->checksum, content.checksum);
  EXPECT_EQ(held->version, content.version);
  EXPECT_EQ(held->extents, content.extents);
  EXPECT_EQ(lookup(kCatalogRoot, "two"), 7);
  EXPECT_EQ(catalog_->highest_id(), 7);
}

TEST_F(CatalogTest, GivesBackTheExtentsOfAReplacedContent) {
  put_file(2, kCatalogRoot, "a", {{10, 4}, {20, 4}});
  EXPECT_THAT(commit({PutContent{2, content_of({{30, 2}})}}), ElementsAre(Extent{10, 4}, Extent{20, 4}));
  EXPECT_THAT(commit({PutContent{2, content_of({{30, 2}})}}), IsEmpty()) << "the same again";
  EXPECT_THAT(commit({PutContent{2, content_of({{31, 2}})}}), ElementsAre(Extent{30, 1}));
  EXPECT_THAT(commit({DropName{kCatalogRoot, "a"}}), ElementsAre(Extent{31, 2}));
}

TEST_F(CatalogTest, GivesBackEachExtentOnceWhateverABatchDoes) {
  put_file(2, kCatalogRoot, "a", {{10, 4}});
  EXPECT_THAT(commit({PutContent{2, content_of({{10, 4}})}, PutContent{2, content_of({{20, 1}})},
                      PutContent{2, content_of({{10, 4}})}, DropName{kCatalogRoot, "a"}}),
              ElementsAre(Extent{10, 4}, Extent{20, 1}));
  EXPECT_FALSE(has_node(2));
  EXPECT_FALSE(has_content(2));
}

TEST_F(CatalogTest, DropsANodeWithItsLastName) {
  put_file(2, kCatalogRoot, "a", {{10, 4}});
  EXPECT_THAT(commit({PutName{kCatalogRoot, "b", 2}, PutName{kCatalogRoot, "b", 2}}), IsEmpty());
  EXPECT_THAT(commit({DropName{kCatalogRoot, "a"}, DropName{kCatalogRoot, "a"}}), IsEmpty());
  EXPECT_TRUE(has_node(2));
  EXPECT_THAT(commit({DropName{kCatalogRoot, "b"}}), ElementsAre(Extent{10, 4}));
  EXPECT_FALSE(has_node(2));
  EXPECT_FALSE(has_content(2));
  EXPECT_THAT(commit({DropName{kCatalogRoot, "b"}, DropName{99, "b"}}), IsEmpty());
}

TEST_F(CatalogTest, ANameTakenByAnotherNodeIsLost) {
  put_file(2, kCatalogRoot, "a", {{10, 4}});
  put_file(3, kCatalogRoot, "a.tmp", {{20, 4}});
  EXPECT_THAT(commit({PutName{kCatalogRoot, "a", 3}, DropName{kCatalogRoot, "a.tmp"}}),
              ElementsAre(Extent{10, 4}));
  EXPECT_EQ(lookup(kCatalogRoot, "a"), 3);
  EXPECT_EQ(lookup(kCatalogRoot, "a.tmp"), std::nullopt);
  EXPECT_FALSE(has_node(2));
}

TEST_F(CatalogTest, RenamesInEitherOrderAndExchanges) {
  put_directory(2, kCatalogRoot, "d");
  put_file(3, 2, "a", {{10, 1}});
  put_file(4, kCatalogRoot, "b", {{11, 1}});
  EXPECT_THAT(commit({DropName{kCatalogRoot, "d"}, PutName{kCatalogRoot, "e", 2}}), IsEmpty());
  EXPECT_THAT(commit({PutName{kCatalogRoot, "f", 2}, DropName{kCatalogRoot, "e"}}), IsEmpty());
  EXPECT_EQ(lookup(2, "a"), 3) << "what is in the directory stays";
  EXPECT_THAT(commit({PutName{2, "a", 4}, PutName{kCatalogRoot, "b", 3}}), IsEmpty());
  EXPECT_EQ(lookup(2, "a"), 4);
  EXPECT_EQ(lookup(kCatalogRoot, "b"), 3);
  EXPECT_THAT(commit({DropName{kCatalogRoot, "b"}}), ElementsAre(Extent{10, 1})) << "the counts are right";
  EXPECT_THAT(commit({DropName{2, "a"}}), ElementsAre(Extent{11, 1}));
}

TEST_F(CatalogTest, ADirectoryGoesWithAllThatIsOnlyInIt) {
  put_directory(2, kCatalogRoot, "d");
  put_directory(3, 2, "e");
  put_file(4, 3, "deep", {{10, 1}});
  put_file(5, 3, "linked", {{11, 1}});
  commit({PutName{kCatalogRoot, "kept", 5}});
  EXPECT_THAT(commit({DropName{kCatalogRoot, "d"}}), ElementsAre(Extent{10, 1}));
  EXPECT_FALSE(has_node(2));
  EXPECT_FALSE(has_node(3));
  EXPECT_FALSE(has_node(4));
  EXPECT_TRUE(has_node(5));
  EXPECT_THAT(text_of(*catalog_), Not(HasSubstr("lost"))) << "no name is left of what went";
  EXPECT_THAT(commit({DropName{kCatalogRoot, "kept"}}), ElementsAre(Extent{11, 1}));
}

TEST_F(CatalogTest, WhatComesAfterARemovalChangesNothing) {
  put_file(2, kCatalogRoot, "a", {{10, 1}});
  commit({DropName{kCatalogRoot, "a"}});
  EXPECT_THAT(commit({PutContent{2, content_of({{20, 3}})}}), ElementsAre(Extent{20, 3}));
  EXPECT_FALSE(has_content(2));
  put_file(3, kCatalogRoot, "b", {{30, 1}});
  EXPECT_THAT(commit({PutName{kCatalogRoot, "b", 2}}), ElementsAre(Extent{30, 1}));
  EXPECT_EQ(lookup(kCatalogRoot, "b"), std::nullopt);
  EXPECT_EQ(text_of(*catalog_), "");
}

TEST_F(CatalogTest, PutNodeOfAttributesAloneLeavesTheRestOfTheNode) {
  CatalogNode node = file_node(2);
  node.xattrs = {{"user.a", std::string(60'000, 'x')}};
  CatalogNode link = file_node(3);
  link.mode = S_IFLNK | 0777;
  link.link_target = "target";
  commit({PutNode{node}, PutName{kCatalogRoot, "f", 2}, PutContent{2, content_of({{1, 1}})}, PutNode{link},
          PutName{kCatalogRoot, "l", 3}});
  CatalogNode changed = file_node(2, 0400);
  changed.pinned = true;
  link.uid = 9;
  CatalogNode of_link = link;
  of_link.link_target.clear();
  commit({PutNode{changed, true}, PutNode{of_link, true}, PutNode{file_node(4), true}});
  changed.xattrs = node.xattrs;
  const auto found = test::node_in(*catalog_, 2);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->mode, changed.mode);
  EXPECT_TRUE(found->pinned);
  EXPECT_EQ(found->xattrs, node.xattrs);
  EXPECT_EQ(test::node_in(*catalog_, 3)->link_target, "target");
  EXPECT_EQ(test::node_in(*catalog_, 3)->uid, 9u);
  EXPECT_FALSE(test::node_in(*catalog_, 4));
}

TEST_F(CatalogTest, PutNodeLeavesNamesAndContentAlone) {
  put_file(2, kCatalogRoot, "a", {{10, 1}});
  commit({PutName{kCatalogRoot, "b", 2}});
  commit({PutNode{file_node(2, 0400)}});
  EXPECT_EQ(test::node_in(*catalog_, 2)->mode, S_IFREG | 0400u);
  EXPECT_TRUE(has_content(2));
  EXPECT_THAT(commit({DropName{kCatalogRoot, "a"}}), IsEmpty());
  EXPECT_THAT(commit({DropName{kCatalogRoot, "b"}}), ElementsAre(Extent{10, 1}));
}

TEST_F(CatalogTest, ANodeMayWaitForItsName) {
  commit({PutNode{file_node(2)}});
  commit({PutContent{2, content_of({{1, 1}})}});
  commit({PutName{kCatalogRoot, "a", 2}});
  EXPECT_EQ(lookup(kCatalogRoot, "a"), 2);
  EXPECT_TRUE(has_content(2));
}

TEST_F(CatalogTest, RefusesWhatCannotBeHeldAsAWhole) {
  const std::vector<CatalogChange> wrong = {
      PutNode{CatalogNode{}},
      PutName{kCatalogRoot, "", 2},
      PutName{kCatalogRoot, std::string(256, 'a'), 2},
      PutName{0, "a", 2},
      PutName{kCatalogRoot, "a", kCatalogRoot},
      PutContent{2, content_of({{5, 0}})},
      PutContent{2, content_of({{UINT64_MAX, 2}})},
  };
  for (const CatalogChange& change : wrong) {
    const auto refused = catalog_->commit(std::vector<CatalogChange>{PutNode{file_node(2)}, change});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, EINVAL);
    EXPECT_FALSE(has_node(2));
  }
  put_file(2, kCatalogRoot, std::string(255, 'a'), {});
  EXPECT_EQ(lookup(kCatalogRoot, std::string(255, 'a')), 2);
}

TEST_F(CatalogTest, KeepsSettings) {
  EXPECT_EQ(catalog_->setting("uuid").value(), std::nullopt);
  EXPECT_TRUE(catalog_->put_setting("uuid", "first"));
  EXPECT_TRUE(catalog_->put_setting("uuid", std::string("b\0b", 3)));
  EXPECT_TRUE(catalog_->put_setting("large", std::string(1 << 20, 'l')));
  open();
  EXPECT_EQ(catalog_->setting("uuid").value(), std::string("b\0b", 3));
  EXPECT_EQ(catalog_->setting("large").value()->size(), 1u << 20);
  EXPECT_EQ(catalog_->put_setting("catalog.format", "2").error().code, EINVAL);
  EXPECT_EQ(catalog_->put_setting("", "2").error().code, EINVAL);
  EXPECT_EQ(catalog_->put_setting(std::string(501, 'n'), "2").error().code, EINVAL);
}

TEST_F(CatalogTest, ClearEmptiesTheTreeAndKeepsTheSettings) {
  put_file(2, kCatalogRoot, "a", {{10, 1}});
  ASSERT_TRUE(catalog_->put_setting("uuid", "u"));
  ASSERT_TRUE(catalog_->clear());
  EXPECT_EQ(text_of(*catalog_), "");
  EXPECT_EQ(catalog_->setting("uuid").value(), "u");
  EXPECT_THAT(commit({PutNode{file_node(2)}, PutName{kCatalogRoot, "a", 2}}), IsEmpty());
}

TEST_F(CatalogTest, TheDirectoryIsThisUsersAlone) {
  struct stat facts {};
  ASSERT_EQ(::stat(directory_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode, S_IFDIR | 0700u);
  ASSERT_EQ(::stat((directory_ + "/data.mdb").c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode, S_IFREG | 0600u);
}

TEST_F(CatalogTest, OneProcessAtATime) {
  const auto second = Catalog::open(directory_);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EBUSY);
  EXPECT_THAT(second.error().message, HasSubstr(directory_));
  catalog_.reset();
  EXPECT_TRUE(Catalog::open(directory_));
}

// An older program, which knows no holes, would take a hole for damage.
TEST_F(CatalogTest, TheFormatIsANewerOneFromTheFirstHoleOn) {
  const auto has_format = [this](char number) {
    return test::read_file(directory_ + "/data.mdb").find(std::string("catalog.format") + number) !=
           std::string::npos;
  };
  put_file(2, kCatalogRoot, "a", {{10, 1}});
  EXPECT_TRUE(has_format('1'));
  EXPECT_FALSE(has_format('2'));
  put_file(3, kCatalogRoot, "b", {{0, 7}, {11, 1}});
  EXPECT_TRUE(has_format('2'));
  open();
  EXPECT_THAT(test::content_in(*catalog_, 3)->extents, ElementsAre(Extent{0, 7}, Extent{11, 1}));
  EXPECT_THAT(test::content_in(*catalog_, 2)->extents, ElementsAre(Extent{10, 1}));
}

TEST_F(CatalogTest, AHoleIsNoSpace) {
  put_file(2, kCatalogRoot, "a", {{0, 50}, {10, 1}, {0, 3}});
  put_file(3, kCatalogRoot, "b", {{0, 5}});
  EXPECT_THAT(commit({PutContent{2, content_of({{0, 60}, {20, 1}})}}), ElementsAre(Extent{10, 1}));
  EXPECT_THAT(commit({DropName{kCatalogRoot, "a"}, DropName{kCatalogRoot, "b"}}), ElementsAre(Extent{20, 1}));
}

TEST_F(CatalogTest, ANewerFormatIsRefused) {
  catalog_.reset();
  // The format lies in the file as the text of a number, once in each copy of the settings.
  std::string bytes = test::read_file(directory_ + "/data.mdb");
  size_t found = 0;
  for (size_t at = bytes.find("catalog.format"); at != std::string::npos;
       at = bytes.find("catalog.format", at + 1), ++found)
    bytes[at + std::string_view("catalog.format").size()] = '3';
  ASSERT_GT(found, 0);
  test::write_file(directory_ + "/data.mdb", bytes);
  const auto refused = Catalog::open(directory_);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOTSUP);
  EXPECT_THAT(refused.error().message, HasSubstr("format 3, newer than 2"));
}

TEST(CatalogDirectory, IsOnlyMadeWhereAskedFor) {
  const test::DiskDirectory place;
  EXPECT_EQ(Catalog::open(place / "missing/catalog").error().code, ENOENT);
  EXPECT_EQ(Catalog::open(place / "catalog", {.create = false}).error().code, ENOENT);
  ASSERT_TRUE(Catalog::open(place / "catalog"));
  EXPECT_TRUE(Catalog::open(place / "catalog", {.create = false}));
  test::write_file(place / "file", "");
  EXPECT_EQ(Catalog::open(place / "file").error().code, ENOTDIR);
}

TEST(CatalogDirectory, AHalfMadeCatalogIsMadeAgain) {
  const test::DiskDirectory place;
  ASSERT_EQ(::mkdir((place / "catalog").c_str(), 0700), 0);
  test::write_file(place / "catalog/data.mdb.new", std::string(5000, '\0'));
  const auto opened = Catalog::open(place / "catalog");
  ASSERT_TRUE(opened) << opened.error().message;
  EXPECT_EQ(text_of(**opened), "");
}

TEST(CatalogDirectory, AFileThatIsNoCatalogIsRefused) {
  const test::DiskDirectory place;
  ASSERT_EQ(::mkdir((place / "catalog").c_str(), 0700), 0);
  test::write_file(place / "catalog/data.mdb", std::string(20000, 'x'));
  const auto refused = Catalog::open(place / "catalog");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, EUCLEAN);
}

}  // namespace kvcachefs::catalog_test
