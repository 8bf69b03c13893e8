// What a change of a name means for entries, for the catalog and for what is in use.
#include "tier/pool/tree.h"

#include <gmock/gmock.h>
#include <linux/fs.h>

#include <cerrno>

#include "tests/support/pool_parts.h"

namespace kvcachefs::tree_test {

using test::code_of;
using ::testing::ElementsAre;

class TreeTest : public test::PoolPartsTest {
 protected:
  TreeTest() : PoolPartsTest(Upto::kTree) {}
  int remove(const std::string& name, bool is_directory = false) {
    return code_of(tree_->remove(root(), name.c_str(), is_directory));
  }
  int rename(const std::string& from, const std::string& to, unsigned flags = 0) {
    return code_of(tree_->rename(root(), from.c_str(), root(), to.c_str(), flags));
  }
  int link(uint64_t ino, const std::string& name) { return code_of(tree_->link(ino, root(), name.c_str())); }
  // The answer for a directory that the evictor has found empty.
  Result<uint64_t> remove_directory(const std::string& name) {
    const UniqueFd directory = open(name, O_PATH);
    EntryTable::Shard& its_shard = shard(ino(name));
    MutexLock lock(its_shard.mutex);
    return tree_->remove_directory(its_shard, its_shard.find(ino(name)), ino(name), directory.get());
  }
};

TEST_F(TreeTest, ARemovedFileThatNobodyUsesIsGone) {
  const uint64_t f = store("f");
  EXPECT_EQ(remove("f"), 0);
  EXPECT_FALSE(is_there("f"));
  EXPECT_FALSE(state(f).exists);
  EXPECT_EQ(entries_.sums().files(), 0u);
  EXPECT_EQ(counters_.removes, 1u);
  EXPECT_EQ(remove("f"), ENOENT);
}

TEST_F(TreeTest, ARemovedFileStaysForThoseWhoHaveItOpen) {
  const uint64_t f = store("f");
  open_entry(f);
  EXPECT_EQ(remove("f"), 0);
  EXPECT_TRUE(state(f).removed);
  EXPECT_TRUE(is_kept(f));
  EXPECT_EQ(entries_.sums().files(), 0u);
  EXPECT_FALSE(entries_.candidates().next_victim(false)) << "no candidate for eviction";
}

TEST_F(TreeTest, ARemovedFileThatTheKernelKnowsStaysUntilForgotten) {
  const uint64_t f = store("f");
  set_lookups(f, 1);
  EXPECT_EQ(remove("f"), 0);
  EXPECT_TRUE(state(f).removed);
  EXPECT_FALSE(is_kept(f)) << "it is not in use";
}

TEST_F(TreeTest, AFileThatAnOpenHasSoughtCanBeOpenedWithoutItsName) {
  const uint64_t f = store("f");
  ASSERT_TRUE(inodes_->look_up(handle("f"), root(), "f", true));
  EXPECT_EQ(remove("f"), 0);
  EXPECT_TRUE(is_kept(f));
}

TEST_F(TreeTest, AFileGoesWithItsLastName) {
  const uint64_t f = store("f");
  EXPECT_EQ(link(f, "g"), 0);
  EXPECT_EQ(state(f).lookups, 1u) << "the kernel is told of the inode";
  EXPECT_EQ(remove("f"), 0);
  EXPECT_FALSE(state(f).removed);
  EXPECT_EQ(entries_.sums().files(), 1u);
  EXPECT_EQ(remove("g"), 0);
  EXPECT_TRUE(state(f).removed);
  EXPECT_EQ(counters_.removes, 2u);
}

TEST_F(TreeTest, ARemovedDirectoryThatTheKernelKnowsKeepsItsAttributes) {
  const uint64_t d = make_known_directory("d");
  EXPECT_EQ(remove("d"), EISDIR);
  EXPECT_FALSE(state(d).removed);
  EXPECT_EQ(remove("d", true), 0);
  EXPECT_TRUE(state(d).removed);
  EXPECT_TRUE(is_kept(d));
  EXPECT_EQ(counters_.removes, 0u) << "no entry";
  make_directory("unknown");
  EXPECT_EQ(remove("unknown", true), 0);
}

TEST_F(TreeTest, ADirectoryThatIsEmptiedIsNoted) {
  make_directory("d");
  (void)store("d/f");
  (void)store("d/g");
  (void)store("h");
  const UniqueFd d = open("d", O_PATH);
  ASSERT_TRUE(tree_->remove(d.get(), "f", false));
  EXPECT_EQ(tree_->empty_directories()->counts().ripe, 0u);
  EXPECT_EQ(remove("h"), 0) << "the root is none that can leave";
  ASSERT_TRUE(tree_->rename(d.get(), "g", root(), "g", 0));
  EXPECT_EQ(tree_->empty_directories()->counts().ripe, 1u);
}

TEST_F(TreeTest, AnInodeIsKeptForASuccessorUntilItIsForgotten) {
  supervise();
  const uint64_t f = store("f");
  const sys::Handle its = handle("f");
  open_entry(f);
  EXPECT_EQ(remove("f"), 0);
  const auto kept = survivors_->kept_inodes().list();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].second.inode, (PoolInode{kPool, f}));
  EXPECT_EQ(kept[0].second.generation, its.generation);
  close_entry(f);
  inodes_->forget(f, 0);
  EXPECT_TRUE(survivors_->kept_inodes().list().empty());
}

// An open file keeps itself as long as this process lives. What is served from the disk has nothing else.
TEST_F(TreeTest, AUserWithoutADescriptorLeftCannotRemoveWhatIsServedFromTheDisk) {
  supervise();
  survivors_->descriptors().limit(0);
  const uint64_t f = store("f");
  open_entry(f);
  const uint64_t g = store("g");
  open_entry(g, {.from_disk = true});
  const uint64_t d = make_known_directory("d");
  EXPECT_EQ(remove("f"), 0);
  EXPECT_EQ(remove("d", true), 0);
  EXPECT_FALSE(is_kept(f) || is_kept(d));
  EXPECT_EQ(remove("g"), EDQUOT);
  EXPECT_TRUE(is_there("g"));
  EXPECT_FALSE(state(g).removed);
  (void)store("h");
  EXPECT_EQ(rename("h", "g"), EDQUOT);
  EXPECT_TRUE(is_there("h"));
  close_entry(f);
  close_entry(g, {.from_disk = true});
}

TEST_F(TreeTest, ARenamePublishesAnEntry) {
  const uint64_t f = store_fresh("f.tmp");
  ASSERT_EQ(state(f).stage, Entry::Stage::kFresh);
  EXPECT_EQ(rename("f.tmp", "f"), 0);
  EXPECT_EQ(state(f).stage, Entry::Stage::kCandidate);
  const uint64_t g = create("g.tmp");
  EXPECT_EQ(rename("g.tmp", "g"), 0);
  EXPECT_EQ(state(g).stage, Entry::Stage::kWritten);
  close_entry(g, {.writer = true});
  EXPECT_EQ(state(g).stage, Entry::Stage::kCandidate) << "published by its last close";
}

TEST_F(TreeTest, ARenameRemovesWhatItReplaces) {
  const uint64_t f = store("f");
  const uint64_t g = store("g");
  const uint64_t h = store("h");
  open_entry(h);
  EXPECT_EQ(rename("f", "g"), 0);
  EXPECT_FALSE(state(g).exists);
  EXPECT_EQ(rename("g", "h"), 0);
  EXPECT_TRUE(state(h).removed);
  EXPECT_TRUE(is_kept(h));
  EXPECT_EQ(ino("h"), f);
  EXPECT_EQ(counters_.removes, 2u);
  EXPECT_EQ(entries_.sums().files(), 1u);
}

TEST_F(TreeTest, AnExchangeRemovesNothing) {
  const uint64_t f = store("f");
  const uint64_t g = store_fresh("g");
  EXPECT_EQ(rename("f", "g", RENAME_EXCHANGE), 0);
  EXPECT_EQ(ino("g"), f);
  EXPECT_EQ(ino("f"), g);
  EXPECT_FALSE(state(f).removed || state(g).removed);
  EXPECT_EQ(counters_.removes, 0u);
}

TEST_F(TreeTest, ARenameOfAFileToItsOtherNameChangesNothing) {
  const uint64_t f = store("f");
  EXPECT_EQ(link(f, "g"), 0);
  EXPECT_EQ(rename("f", "g"), 0);
  EXPECT_TRUE(is_there("f") && is_there("g"));
  EXPECT_EQ(counters_.removes, 0u);
}

TEST_F(TreeTest, ARenameThatFailsChangesNothing) {
  const uint64_t f = store("f");
  const uint64_t g = store("g");
  EXPECT_EQ(rename("f", "g", RENAME_NOREPLACE), EEXIST);
  EXPECT_EQ(rename("f", "h", RENAME_WHITEOUT), EINVAL);
  EXPECT_EQ(rename("none", "h"), ENOENT);
  EXPECT_EQ(rename("f", "none", RENAME_EXCHANGE), ENOENT);
  EXPECT_EQ(ino("f"), f);
  EXPECT_EQ(ino("g"), g);
  EXPECT_TRUE(state(g).exists);
  EXPECT_EQ(counters_.removes, 0u);
}

// The catalog, which has them or is about to name them, cannot be told of a change.
TEST_F(TreeTest, WhileRestoringNamesOfTheCatalogStay) {
  const uint64_t known = store("known");
  set_node_id(known, 7);
  const uint64_t twice = store("twice");
  EXPECT_EQ(link(twice, "again"), 0);
  (void)make_known_directory("d");
  const uint64_t made = store("new");
  (void)store("other");
  disk_->set_restoring(true);
  EXPECT_EQ(remove("known"), EBUSY);
  EXPECT_EQ(remove("twice"), EBUSY);
  EXPECT_EQ(remove("d", true), EBUSY);
  EXPECT_EQ(rename("known", "moved"), EBUSY);
  EXPECT_EQ(rename("d", "moved"), EBUSY);
  EXPECT_EQ(rename("new", "known"), EBUSY);
  EXPECT_EQ(rename("new", "known", RENAME_EXCHANGE), EBUSY);
  EXPECT_EQ(link(made, "linked"), EBUSY);
  EXPECT_EQ(code_of(remove_directory("d")), EPERM) << "one of the first at the top";
  EXPECT_EQ(rename("new", "newer"), 0);
  EXPECT_EQ(rename("newer", "other"), 0);
  EXPECT_EQ(remove("other"), 0);
  const Nameless nameless = create_nameless();
  EXPECT_EQ(link(nameless.ino, "named"), 0) << "the catalog has no file without a name";
  (void)disk_->end_restoring();
  EXPECT_EQ(remove("known"), 0);
  EXPECT_EQ(remove("d", true), 0);
}

// While the disk tier is in use the catalog can be told, but a successor must know what is to come.
TEST_F(TreeTest, WhileRestoringBehindASuccessorIsToldOfWhatChanges) {
  attach_disk(Durability::kNone);
  for (const uint64_t id : {6, 7, 8, 9, 10}) set_node_id(store("f" + std::to_string(id)), id);
  (void)store("new");
  (void)make_known_directory("d");
  disk_->set_restoring(true);
  disk_->changed_names().begin(root(), 9, {.up_to = 7});
  EXPECT_EQ(remove("d", true), EBUSY);
  EXPECT_EQ(remove("f6"), 0);
  EXPECT_FALSE(restoring_mark_of(root())) << "6 was back before";
  EXPECT_EQ(remove("f8"), 0);
  EXPECT_THAT(restoring_mark_of(root())->changed, ElementsAre(8));
  EXPECT_EQ(rename("new", "f9"), 0) << "replaces it";
  EXPECT_EQ(remove("f10"), 0) << "given a number by this process";
  EXPECT_THAT(restoring_mark_of(root())->changed, ElementsAre(8, 9));
  EXPECT_EQ(restoring_mark_of(root())->up_to, 7u);
  (void)disk_->end_restoring();
  EXPECT_EQ(remove("d", true), EBUSY) << "a restore that has failed leaves names to a successor";
  EXPECT_TRUE(disk_->changed_names().end());
  EXPECT_EQ(remove("d", true), 0);
  EXPECT_FALSE(restoring_mark_of(root()));
}

TEST_F(TreeTest, ANamelessFileBecomesAnEntryWithItsFirstName) {
  const Nameless f = create_nameless();
  EXPECT_EQ(entries_.sums().files(), 0u);
  EXPECT_TRUE(is_kept(f.ino));
  EXPECT_EQ(link(f.ino, "f"), 0);
  EXPECT_EQ(entries_.sums().files(), 1u);
  EXPECT_FALSE(state(f.ino).removed);
  EXPECT_FALSE(is_kept(f.ino)) << "its name keeps it";
  EXPECT_EQ(state(f.ino).lookups, 1u);
  EXPECT_EQ(link(f.ino, "f"), EEXIST);
  EXPECT_EQ(state(f.ino).lookups, 1u);
  EXPECT_EQ(link(4711, "g"), ESTALE);
}

TEST_F(TreeTest, APinThatIsTooMuchForAFilesFirstNameIsLost) {
  const Nameless f = create_nameless();
  EXPECT_TRUE(tree_->set_pinned(f.ino, true));
  ASSERT_TRUE(sys::allocate(f.file.get(), 0, 0, kPoolBytes / 2 + kBlock));
  close_entry(f.ino, {.writer = true});
  EXPECT_TRUE(state(f.ino).pinned) << "without a name it counts for nobody";
  EXPECT_EQ(link(f.ino, "f"), 0);
  EXPECT_FALSE(state(f.ino).pinned);
  EXPECT_EQ(code_of(sys::get_xattr(f.file.get(), kPinnedXattr, {})), ENODATA);
  const auto victim = entries_.candidates().next_victim(true);
  EXPECT_TRUE(victim && victim->ino == f.ino);
}

TEST_F(TreeTest, ACreateThatNobodyWasToldOfIsUndone) {
  const uint64_t f = create("f");
  tree_->undo_create(root(), "f");
  EXPECT_TRUE(is_there("f")) << "it is open";
  close_entry(f, {.writer = true});
  tree_->undo_create(root(), "f");
  EXPECT_FALSE(is_there("f"));
  EXPECT_FALSE(state(f).exists);

  (void)store("with content");
  const uint64_t linked = store("linked", "");
  EXPECT_EQ(link(linked, "again"), 0);
  make_directory("d");
  (void)make("without an entry");
  for (const char* name : {"with content", "linked", "d", "without an entry"}) {
    tree_->undo_create(root(), name);
    EXPECT_TRUE(is_there(name)) << name;
  }
  tree_->undo_create(root(), "none");
}

TEST_F(TreeTest, AnEmptyDirectoryLeaves) {
  make_directory("a");
  make_directory("a/b");
  const uint64_t c = make_known_directory("a/c");
  set_lookups(c, 0);
  const auto parent = remove_directory("a/b");
  ASSERT_TRUE(parent);
  EXPECT_EQ(*parent, ino("a"));
  EXPECT_EQ(tree_->empty_directories()->counts().ripe, 0u);
  ASSERT_TRUE(remove_directory("a/c"));
  EXPECT_FALSE(state(c).exists);
  EXPECT_EQ(tree_->empty_directories()->counts().ripe, 1u) << "a is empty now";
  (void)store("a/f");
  EXPECT_EQ(code_of(remove_directory("a")), EPERM) << "the root has the sticky bit";
  ASSERT_EQ(::fchmod(root(), 0770), 0);
  EXPECT_EQ(code_of(remove_directory("a")), ENOTEMPTY);
  disk_->set_restoring(true);
  EXPECT_EQ(code_of(remove_directory("a")), EBUSY);
}

TEST_F(TreeTest, TheCatalogHearsOfEachChange) {
  attach_disk();
  const uint64_t f = store("f");
  make_clean(f);
  const uint64_t id = state(f).node_id;
  ASSERT_NE(id, 0u);
  EXPECT_EQ(catalogued("f"), id);
  EXPECT_EQ(rename("f", "g"), 0);
  EXPECT_EQ(catalogued("g"), id);
  EXPECT_EQ(catalogued("f"), 0u);
  EXPECT_EQ(link(f, "h"), 0);
  EXPECT_EQ(catalogued("h"), id);
  (void)store("other");
  EXPECT_EQ(rename("other", "h", RENAME_EXCHANGE), 0);
  EXPECT_EQ(catalogued("other"), id);
  EXPECT_EQ(catalogued("h"), 0u) << "it comes with its content";
  EXPECT_EQ(remove("g"), 0);
  EXPECT_EQ(catalogued("g"), 0u);
  EXPECT_EQ(remove("other"), 0);
  EXPECT_FALSE(node(id));
  EXPECT_FALSE(copy(f));
}

TEST_F(TreeTest, WithDurabilityAStoredEntryGoesToTheDiskOnceItIsRenamed) {
  attach_disk(Durability::kWriteback);
  const uint64_t f = store_fresh("f.tmp");
  EXPECT_FALSE(state(f).spill_queued);
  EXPECT_EQ(rename("f.tmp", "f"), 0);
  EXPECT_TRUE(state(f).spill_queued);
  EXPECT_GT(tier().spiller.backlog_bytes(), 0u);
  const Nameless g = create_nameless();
  close_entry(g.ino, {.writer = true});
  EXPECT_EQ(link(g.ino, "g"), 0);
  EXPECT_TRUE(state(g.ino).spill_queued);
}

}  // namespace kvcachefs::tree_test
