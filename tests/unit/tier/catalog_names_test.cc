// What the catalog is told of the names of a small tmpfs, and what it says after each commit.
#include "tier/disk/catalog_names.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/arena_test.h"
#include "tests/support/catalogs.h"
#include "tests/support/small_store.h"

namespace kvcachefs::catalog_names_test {

using test::SmallStore;

constexpr int kPath = O_PATH | O_NOFOLLOW;

class CatalogNamesTest : public test::ArenaTest {
 protected:
  void SetUp() override {
    ArenaTest::SetUp();
    if (IsSkipped()) return;
    names_.emplace(*store_, *arena_, false);
  }
  int root() const { return arena_->tree_fd(); }
  Entry entry_of(const std::string& path, Entry::Stage stage) const {
    struct stat attributes {};
    EXPECT_EQ(::fstatat(root(), path.c_str(), &attributes, AT_SYMLINK_NOFOLLOW), 0) << path;
    Entry entry;
    entry.policy.ino = attributes.st_ino;
    entry.stage = stage;
    return entry;
  }
  Entry make_file(const std::string& path) const {
    (void)make(path);
    return entry_of(path, Entry::Stage::kCandidate);
  }
  // A content of the file gets to the disk.
  void spill(Entry& entry, const std::string& path) {
    auto changes = names_->introduce(entry, open(path, kPath).get());
    ASSERT_TRUE(changes);
    changes->push_back(PutContent{entry.disk.node_id, test::content_of(*store_->allocate(1))});
    store_->log().append(std::move(*changes));
    entry.disk.emptied = false;
  }
  // A rename within the root, as a pool makes it.
  void rename(const Entry& entry, const std::string& from, const std::string& to,
              const Entry* replaced = nullptr) {
    MutexLock tree(names_->tree());
    ASSERT_EQ(::renameat(root(), from.c_str(), root(), to.c_str()), 0);
    names_->renamed(entry, root(), from, root(), to, replaced);
  }
  void link(const Entry& entry, const std::string& from, const std::string& to) {
    MutexLock tree(names_->tree());
    names_->before_link(entry, open(from, kPath).get());
    ASSERT_EQ(::linkat(root(), from.c_str(), root(), to.c_str(), 0), 0);
    names_->linked(entry, root(), to);
  }
  // The catalog's number for a path, after all that it was told; 0: it has no such name.
  uint64_t id_at(const std::string& path) {
    store_->log().step(SmallStore::kNow);
    EXPECT_TRUE(store_->log().idle());
    uint64_t id = kCatalogRoot;
    for (size_t at = 0; at <= path.size() && id != 0;) {
      const size_t end = std::min(path.find('/', at), path.size());
      id = test::id_in(store_->catalog(), id, path.substr(at, end - at)).value_or(0);
      at = end + 1;
    }
    return id;
  }

  SmallStore store_;
  std::optional<CatalogNames> names_;
};

TEST_F(CatalogNamesTest, AFileComesWithItsFirstContentAndTheDirectoriesAboveIt) {
  make_directory("a");
  make_directory("a/b");
  Entry file = make_file("a/b/f");
  ASSERT_EQ(::setxattr((place_ / "arena/tree/a/b/f").c_str(), "user.k", "v", 1, 0), 0);
  EXPECT_EQ(id_at("a"), 0u);
  EXPECT_EQ(names_->id_of(file), 0u);
  spill(file, "a/b/f");
  EXPECT_NE(file.disk.node_id, 0u);
  EXPECT_EQ(id_at("a/b/f"), file.disk.node_id);
  EXPECT_EQ(names_->id_of(entry_of("a", Entry::Stage::kOther)), id_at("a"));
  const auto node = test::node_in(store_->catalog(), file.disk.node_id);
  ASSERT_TRUE(node);
  EXPECT_EQ(node->mode & 07777, 0600u);
  EXPECT_EQ(node->xattrs, (std::vector<std::pair<std::string, std::string>>{{"user.k", "v"}}));
}

TEST_F(CatalogNamesTest, AFileWithoutANameCannotBeIntroduced) {
  Entry file = make_file("f");
  const UniqueFd fd = open("f", kPath);
  ASSERT_EQ(::unlinkat(root(), "f", 0), 0);
  EXPECT_FALSE(names_->introduce(file, fd.get()));
  EXPECT_EQ(file.disk.node_id, 0u);
}

TEST_F(CatalogNamesTest, ANameOfWhatTheCatalogDoesNotHaveIsNotTold) {
  const Entry file = make_file("f");
  rename(file, "f", "g");
  names_->removed(file, root(), "g");
  EXPECT_TRUE(store_->log().idle());
}

TEST_F(CatalogNamesTest, ARenameMovesTheName) {
  Entry file = make_file("f");
  spill(file, "f");
  make_directory("d");
  {
    MutexLock tree(names_->tree());
    ASSERT_EQ(::renameat(root(), "f", root(), "d/g"), 0);
    names_->renamed(file, root(), "f", open("d", kPath).get(), "g", nullptr);
  }
  EXPECT_EQ(id_at("d/g"), file.disk.node_id);
  EXPECT_EQ(id_at("f"), 0u);
  names_->removed(file, open("d", kPath).get(), "g");
  EXPECT_EQ(id_at("d/g"), 0u);
}

// Until the newer file is on the disk a crash is to leave the older one.
TEST_F(CatalogNamesTest, ANewFileTakesAnOlderOnesNameWithItsContent) {
  Entry older = make_file("f");
  spill(older, "f");
  Entry newer = make_file("f.tmp");
  rename(newer, "f.tmp", "f", &older);
  EXPECT_EQ(id_at("f"), older.disk.node_id);
  spill(newer, "f");
  EXPECT_EQ(id_at("f"), newer.disk.node_id);
}

TEST_F(CatalogNamesTest, ANewFileThatIsRemovedTakesTheOlderOneWithIt) {
  Entry older = make_file("f");
  spill(older, "f");
  const Entry newer = make_file("f.tmp");
  rename(newer, "f.tmp", "f", &older);
  names_->removed(newer, root(), "f");
  EXPECT_EQ(id_at("f"), 0u);
}

// After a crash its old content would appear under a name that it never had.
TEST_F(CatalogNamesTest, AnEmptiedFilesNewNameComesWithItsNewContent) {
  Entry file = make_file("f");
  spill(file, "f");
  const uint64_t free_units = store_->space().free_units();
  file.disk.emptied = true;
  rename(file, "f", "g");
  EXPECT_EQ(id_at("f"), 0u);
  EXPECT_EQ(id_at("g"), 0u);
  EXPECT_EQ(names_->withheld(), 1u);
  EXPECT_EQ(store_->space().free_units(), free_units) << "its content is not dropped";
  spill(file, "g");
  EXPECT_EQ(id_at("g"), file.disk.node_id);
  EXPECT_EQ(names_->withheld(), 0u);
}

TEST_F(CatalogNamesTest, AFileComesWithAllItsLinks) {
  Entry file = make_file("f");
  link(file, "f", "g");
  link(file, "f", "h");
  names_->removed(file, root(), "g");
  ASSERT_EQ(::unlinkat(root(), "g", 0), 0);
  spill(file, "f");
  EXPECT_EQ(id_at("f"), file.disk.node_id);
  EXPECT_EQ(id_at("g"), 0u);
  EXPECT_EQ(id_at("h"), file.disk.node_id);
  link(file, "f", "i");
  EXPECT_EQ(id_at("i"), file.disk.node_id) << "the catalog has the file by now";
}

TEST_F(CatalogNamesTest, AnExchangeChangesBothNames) {
  Entry known = make_file("f");
  spill(known, "f");
  Entry unknown = make_file("g");
  {
    MutexLock tree(names_->tree());
    ASSERT_EQ(::renameat2(root(), "f", root(), "g", RENAME_EXCHANGE), 0);
    names_->exchanged(known, unknown, root(), "f", root(), "g");
  }
  EXPECT_EQ(id_at("g"), known.disk.node_id);
  EXPECT_EQ(id_at("f"), 0u);
  spill(unknown, "f");
  EXPECT_EQ(id_at("f"), unknown.disk.node_id);
  EXPECT_EQ(id_at("g"), known.disk.node_id);
}

TEST_F(CatalogNamesTest, ALinkComesWhenItIsMadeAndGoesWithItsInode) {
  ASSERT_EQ(::symlinkat("target", root(), "s"), 0);
  const Entry symlink = entry_of("s", Entry::Stage::kOther);
  names_->made(symlink, root(), "s");
  const uint64_t id = id_at("s");
  ASSERT_NE(id, 0u);
  EXPECT_EQ(names_->id_of(symlink), id);
  EXPECT_EQ(test::node_in(store_->catalog(), id)->link_target, "target");
  names_->removed(symlink, root(), "s");
  names_->gone(symlink);
  EXPECT_EQ(id_at("s"), 0u);
  EXPECT_EQ(names_->id_of(symlink), 0u);
}

TEST_F(CatalogNamesTest, ChangedAttributesAreToldOfWhatTheCatalogHas) {
  Entry file = make_file("f");
  struct stat shown {};
  ASSERT_EQ(::fchmodat(root(), "f", 0640, 0), 0);
  ASSERT_EQ(::fstatat(root(), "f", &shown, 0), 0);
  names_->changed(file, open("f", kPath).get(), shown, false);
  EXPECT_TRUE(store_->log().idle());
  spill(file, "f");
  ASSERT_TRUE(sys::set_xattr(open("f", O_RDONLY).get(), "user.a", "1", 0));
  shown.st_mode = S_IFREG | 0444;
  names_->changed(file, open("f", kPath).get(), shown, false);
  (void)id_at("f");
  EXPECT_EQ(test::node_in(store_->catalog(), file.disk.node_id)->mode & 07777, 0444u);
  EXPECT_TRUE(test::node_in(store_->catalog(), file.disk.node_id)->xattrs.empty()) << "it heard of none";
  names_->changed(file, open("f", kPath).get(), shown, true);
  (void)id_at("f");
  EXPECT_EQ(test::node_in(store_->catalog(), file.disk.node_id)->xattrs.size(), 1u);
}

}  // namespace kvcachefs::catalog_names_test
