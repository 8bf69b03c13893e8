// The catalog's treatment of records that are damaged or contradict each other.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <functional>

#include "tests/support/catalogs.h"
#include "tests/support/disks.h"
#include "tier/catalog/catalog.h"
#include "tier/catalog/catalog_records.h"
#include "tier/catalog/catalog_store.h"

namespace kvcachefs::catalog_load_test {

using records::id_key;
using records::NameKey;
using test::content_of;
using test::directory_node;
using test::file_node;
using test::text_of;
using ::testing::HasSubstr;
using ::testing::Not;

std::string key_of(uint64_t id) {
  return std::string(id_key(id));
}

TEST(CatalogNames, NoneLeadsOutOfItsDirectory) {
  for (const std::string name : {"", ".", "..", "/", "a/b", "../x"})
    EXPECT_FALSE(records::name_of(std::string(id_key(2)) + name)) << name;
  EXPECT_FALSE(records::name_of(std::string(id_key(2)) + std::string("a\0b", 3)));
  for (const std::string name : {"...", ".a", "a", "a b", "\xff"})
    EXPECT_TRUE(records::name_of(std::string(id_key(2)) + name)) << name;
}

std::string key_of(uint64_t parent, std::string_view name) {
  return std::string(std::string_view(NameKey(parent, name)));
}

// The nodes: /d 2, /d/e 3, /d/e/file 4, /d/two and /three 5, /link 6.
class CatalogLoadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    CatalogNode link;
    link.id = 6;
    link.mode = S_IFLNK | 0777;
    link.link_target = "three";
    commit({PutNode{directory_node(2)}, PutName{kCatalogRoot, "d", 2}, PutNode{directory_node(3)},
            PutName{2, "e", 3}, PutNode{file_node(4)}, PutName{3, "file", 4},
            PutContent{4, content_of({{10, 4}})}, PutNode{file_node(5)}, PutName{2, "two", 5},
            PutName{kCatalogRoot, "three", 5}, PutContent{5, content_of({{20, 4}})}, PutNode{link},
            PutName{kCatalogRoot, "link", 6}});
  }

  std::unique_ptr<Catalog> open() {
    auto opened = Catalog::open(directory_);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? std::move(*opened) : nullptr;
  }
  void commit(const std::vector<CatalogChange>& changes) { ASSERT_TRUE(open()->commit(changes)); }
  void damage(const CatalogStore::Body& body) {
    auto store = CatalogStore::open(directory_, {});
    ASSERT_TRUE(store) << store.error().message;
    const Result<void> written = (*store)->write(body);
    ASSERT_TRUE(written) << written.error().message;
  }
  void flip(CatalogTable table, const std::string& key, size_t byte) {
    damage([&](CatalogTransaction& transaction) -> Result<void> {
      std::string record(**transaction.get(table, key));
      record.at(byte) = static_cast<char>(record[byte] ^ 0x10);
      return transaction.put(table, key, record);
    });
  }
  void put(CatalogTable table, const std::string& key, const std::string& value) {
    damage([&](CatalogTransaction& transaction) { return transaction.put(table, key, value); });
  }
  // The losses of a load; a second load must lose nothing more and find exactly the nodes `left`.
  std::vector<std::string> losses(const std::vector<uint64_t>& left) {
    const auto catalog = open();
    const std::string kept = text_of(*catalog, Catalog::Losses::kKeep);
    const std::string first = text_of(*catalog, Catalog::Losses::kDrop);
    EXPECT_EQ(first, kept);
    const std::string second = text_of(*catalog);
    EXPECT_THAT(second, Not(HasSubstr("lost ")));
    EXPECT_TRUE(first.starts_with(second));
    std::vector<uint64_t> ids;
    std::vector<std::string> lost;
    size_t at = 0;
    for (size_t end = first.find('\n'); end != std::string::npos; at = end + 1, end = first.find('\n', at)) {
      const std::string line = first.substr(at, end - at);
      if (line.starts_with("lost "))
        lost.push_back(line.substr(5));
      else
        ids.push_back(std::stoull(line));
    }
    EXPECT_EQ(ids, left);
    return lost;
  }
  size_t count(CatalogTable table) {
    size_t records = 0;
    damage([&](CatalogTransaction& transaction) -> Result<void> {
      records = 0;
      auto scan = transaction.scan(table);
      for (; scan && scan->valid(); ++records)
        if (auto moved = scan->next(); !moved) return moved;
      return scan ? Result<void>() : pass(scan);
    });
    return records;
  }

  using Losses = std::vector<std::string>;
  test::DiskDirectory place_;
  const std::string directory_ = place_ / "catalog";
};

TEST_F(CatalogLoadTest, WhatIsWithheldGoesWithoutAWord) {
  // Node 4 was renamed and waits for its new content; a second name of node 5 is on its way.
  commit({PutName{kCatalogWithheld, "4", 4}, DropName{3, "file"}, PutName{kCatalogWithheld, "5", 5}});
  EXPECT_EQ(losses({2, 3, 5, 6}), Losses{});
  EXPECT_EQ(count(CatalogTable::kNames), 5) << "d, e, two, three and link";
  EXPECT_EQ(count(CatalogTable::kContents), 1);
  EXPECT_EQ(losses({2, 3, 5, 6}), Losses{}) << "and has left nothing";
}

TEST_F(CatalogLoadTest, AWholeOneLosesNothing) {
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), Losses{});
}

TEST_F(CatalogLoadTest, ADamagedNodeGoesWithItsNamesAndContent) {
  flip(CatalogTable::kNodes, key_of(5), 20);
  EXPECT_EQ(losses({2, 3, 4, 6}), Losses{"damaged node: 5 ''"});
  EXPECT_EQ(count(CatalogTable::kNames), 4);
  EXPECT_EQ(count(CatalogTable::kContents), 1);
}

TEST_F(CatalogLoadTest, ADamagedDirectoryTakesWithItWhatIsOnlyInIt) {
  flip(CatalogTable::kNodes, key_of(2), 0);
  EXPECT_EQ(losses({5, 6}),
            (Losses{"damaged node: 2 ''", "node without a name: 3 ''", "node without a name: 4 ''",
                    "name without a node: 5 'two'", "wrong count of names: 5 ''"}));
  EXPECT_EQ(count(CatalogTable::kNames), 2);
  EXPECT_EQ(count(CatalogTable::kNodes), 2);
  EXPECT_EQ(count(CatalogTable::kContents), 1);
  auto freed = open()->commit(std::vector<CatalogChange>{DropName{kCatalogRoot, "three"}});
  EXPECT_EQ(*freed, (std::vector<Extent>{{20, 4}})) << "its count of names was set right";
}

TEST_F(CatalogLoadTest, ADamagedRootLosesOnlyItself) {
  commit({PutNode{directory_node(kCatalogRoot)}});
  flip(CatalogTable::kNodes, key_of(kCatalogRoot), 9);
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), Losses{"damaged node: 1 ''"});
  commit({PutNode{file_node(kCatalogRoot)}});
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), Losses{"damaged node: 1 ''"});
}

TEST_F(CatalogLoadTest, ADamagedKeyIsNoHighestId) {
  put(CatalogTable::kNodes, key_of(UINT64_MAX), "rubbish");
  put(CatalogTable::kNodes, key_of(9), "rubbish");
  EXPECT_EQ(open()->highest_id(), 6);
  EXPECT_EQ(losses({2, 3, 4, 5, 6}),
            (Losses{"damaged node: 9 ''", fmt::format("damaged node: {} ''", UINT64_MAX)}));
}

// Because new ids count on from the highest one, they would soon reach 0.
TEST_F(CatalogLoadTest, AnIdNearTheEndOfTheNumbersIsRefused) {
  for (const uint64_t id : {uint64_t{1} << 63, UINT64_MAX - 1, UINT64_MAX}) {
    put(CatalogTable::kNodes, key_of(id), records::encode_node(directory_node(id), 1));
    const std::string name = key_of(kCatalogRoot, "x");
    put(CatalogTable::kNames, name, records::encode_name(name, id));
    EXPECT_EQ(open()->highest_id(), 6);
    EXPECT_THAT(losses({2, 3, 4, 5, 6}), ::testing::Contains(fmt::format("damaged node: {} ''", id)));
    EXPECT_EQ(count(CatalogTable::kNodes), 5);
    EXPECT_EQ(count(CatalogTable::kNames), 6);
    const auto refused = open()->commit(std::vector<CatalogChange>{PutNode{file_node(id)}});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, EINVAL);
  }
}

TEST_F(CatalogLoadTest, ADamagedName) {
  flip(CatalogTable::kNames, key_of(2, "two"), 15);
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), (Losses{"damaged name: 0 'two'", "wrong count of names: 5 ''"}));
  flip(CatalogTable::kNames, key_of(kCatalogRoot, "three"), 5);
  EXPECT_EQ(losses({2, 3, 4, 6}), (Losses{"damaged name: 0 'three'", "node without a name: 5 ''"}));
}

TEST_F(CatalogLoadTest, ADamagedContentTakesItsFile) {
  flip(CatalogTable::kContents, key_of(5), 41);
  EXPECT_EQ(losses({2, 3, 4, 6}), Losses{"damaged content: 5 ''"});
  EXPECT_EQ(count(CatalogTable::kNames), 4);
  EXPECT_EQ(count(CatalogTable::kContents), 1);
}

TEST_F(CatalogLoadTest, AFileWithoutContent) {
  damage(
      [](CatalogTransaction& transaction) { return transaction.erase(CatalogTable::kContents, key_of(4)); });
  EXPECT_EQ(losses({2, 3, 5, 6}), Losses{"file without content: 4 ''"});
}

TEST_F(CatalogLoadTest, ContentsWithoutFiles) {
  put(CatalogTable::kContents, key_of(77), records::encode_content(77, content_of({{1, 1}})));
  put(CatalogTable::kContents, key_of(3), records::encode_content(3, content_of({{1, 1}})));
  put(CatalogTable::kContents, key_of(6), "damaged as well");
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), (Losses{"content without a file: 3 ''", "content without a file: 6 ''",
                                             "content without a file: 77 ''"}));
  EXPECT_EQ(count(CatalogTable::kContents), 2);
}

TEST_F(CatalogLoadTest, NamesOfNodesOrInDirectoriesThatAreNotThere) {
  const std::string in_nothing = key_of(50, "x"), of_nothing = key_of(2, "y");
  put(CatalogTable::kNames, in_nothing, records::encode_name(in_nothing, 4));
  put(CatalogTable::kNames, of_nothing, records::encode_name(of_nothing, 51));
  const std::string in_file = key_of(4, "z");
  put(CatalogTable::kNames, in_file, records::encode_name(in_file, 5));
  // The losses come in the order of the ids to which the names point; the counts never included these names.
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), (Losses{"name without a node: 4 'x'", "name without a node: 5 'z'",
                                             "name without a node: 51 'y'"}));
  EXPECT_EQ(count(CatalogTable::kNames), 6);
}

TEST_F(CatalogLoadTest, ANodeThatNeverGotItsName) {
  commit({PutNode{file_node(9)}, PutContent{9, content_of({{30, 1}})}});
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), Losses{"node without a name: 9 ''"});
  EXPECT_EQ(count(CatalogTable::kContents), 2);
}

TEST_F(CatalogLoadTest, ADirectoryKeepsOneName) {
  commit({PutName{kCatalogRoot, "again", 3}});  // the first half of a rename
  EXPECT_EQ(losses({2, 3, 4, 5, 6}),
            (Losses{"second name of a directory: 3 'e'", "wrong count of names: 3 ''"}));
  EXPECT_EQ(test::id_in(*open(), kCatalogRoot, "again"), 3);
}

TEST_F(CatalogLoadTest, DirectoriesThatHoldEachOtherCannotBeReached) {
  commit({PutName{3, "up", 2}});
  commit({DropName{kCatalogRoot, "d"}});
  EXPECT_EQ(losses({5, 6}),
            (Losses{"node without a name: 2 ''", "node without a name: 3 ''", "node without a name: 4 ''",
                    "name without a node: 5 'two'", "wrong count of names: 5 ''"}));
}

TEST_F(CatalogLoadTest, AWrongCountIsSetRight) {
  damage([&](CatalogTransaction& transaction) -> Result<void> {
    std::string record(**transaction.get(CatalogTable::kNodes, key_of(5)));
    records::set_names(5, record, 7);
    return transaction.put(CatalogTable::kNodes, key_of(5), record);
  });
  EXPECT_EQ(losses({2, 3, 4, 5, 6}), Losses{"wrong count of names: 5 ''"});
}

TEST_F(CatalogLoadTest, KeysThatNobodyMade) {
  for (const CatalogTable table : {CatalogTable::kNodes, CatalogTable::kNames, CatalogTable::kContents}) {
    put(table, "x", "y");
    put(table, std::string(400, '\xff'), std::string(100, 'z'));
    put(table, key_of(0), "");
  }
  // The content of id 0 goes with the node of id 0.
  EXPECT_THAT(losses({2, 3, 4, 5, 6}), ::testing::SizeIs(8));
  EXPECT_EQ(count(CatalogTable::kNodes), 5);
  EXPECT_EQ(count(CatalogTable::kNames), 6);
  EXPECT_EQ(count(CatalogTable::kContents), 2);
}

// Any damage to the records causes no crash and leaves the other records as they were; a record lost once
// stays lost.
TEST_F(CatalogLoadTest, AnyDamageLeavesTheRest) {
  const std::string whole = text_of(*open());
  test::Random random(5);
  for (int round = 0; round < 60; ++round) {
    if (round % 6 == 0) {
      ASSERT_TRUE(open()->clear());
      SetUp();
    }
    damage([&](CatalogTransaction& transaction) -> Result<void> {
      for (const CatalogTable table : {CatalogTable::kNodes, CatalogTable::kNames, CatalogTable::kContents}) {
        if (random.one_in(2)) continue;
        std::vector<std::pair<std::string, std::string>> all;
        auto scan = transaction.scan(table);
        for (; scan->valid(); (void)scan->next()) all.emplace_back(scan->key(), scan->value());
        if (all.empty()) continue;
        auto& [key, value] = all[random.below(all.size())];
        if (random.one_in(3)) value.resize(random.below(value.size() + 20), '\x55');
        if (!value.empty()) value[random.below(value.size())] ^= static_cast<char>(1 + random.below(255));
        if (auto put = transaction.put(table, key, value); !put) return put;
      }
      return {};
    });
    const auto catalog = open();
    text_of(*catalog, Catalog::Losses::kDrop);
    const std::string left = text_of(*catalog);
    EXPECT_THAT(left, Not(HasSubstr("lost ")));
    for (size_t at = 0, end; (end = left.find('\n', at)) != std::string::npos; at = end + 1) {
      const std::string node = left.substr(at, left.find(" @", at) - at);
      EXPECT_THAT(whole, HasSubstr(node));
    }
  }
}

TEST_F(CatalogLoadTest, AFileThatWasCutOffIsAnErrorAndNoCrash) {
  std::vector<CatalogChange> changes;
  for (uint64_t id = 10; id < 3000; ++id) {
    changes.emplace_back(PutNode{file_node(id)});
    changes.emplace_back(PutName{kCatalogRoot, std::to_string(id), id});
    changes.emplace_back(PutContent{id, content_of({{id, 1}})});
  }
  commit(changes);
  const std::string file = directory_ + "/data.mdb";
  struct stat facts {};
  ASSERT_EQ(::stat(file.c_str(), &facts), 0);
  for (const off_t left : {facts.st_size / 2, off_t{12288}, off_t{8192}}) {
    ASSERT_EQ(::truncate(file.c_str(), left), 0);
    const auto opened = Catalog::open(directory_);
    if (!opened) {
      EXPECT_EQ(opened.error().code, EUCLEAN) << opened.error().message;
      continue;
    }
    struct : CatalogVisitor {
      void node(const CatalogNode&, std::span<const CatalogName>, const CatalogContent*) override {}
      void lost(CatalogLoss, uint64_t, std::string_view) override {}
    } visitor;
    const Result<void> loaded = (*opened)->load(visitor);
    ASSERT_FALSE(loaded);
    EXPECT_EQ(loaded.error().code, EUCLEAN) << loaded.error().message;
  }
}

}  // namespace kvcachefs::catalog_load_test
