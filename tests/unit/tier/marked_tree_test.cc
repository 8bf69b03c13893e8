// The tree that a process left, as the marks on its inodes say.
#include "tier/recovery/marked_tree.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <sys/xattr.h>

#include <cerrno>
#include <variant>

#include "tests/support/recovery_test.h"

namespace kvcachefs::marked_tree_test {

using test::code_of;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;
using Place = CatalogNames::Place;
using State = CopyMark::State;

class MarkedTreeTest : public test::RecoveryTest {
 protected:
  // A directory; with a number, one that the catalog has.
  uint64_t leave_directory(const std::string& name, uint64_t id = 0) const {
    make_directory(name);
    if (id != 0) {
      EXPECT_TRUE(put_copy_mark(open(name, O_RDONLY).get(), {.node_id = id, .content = {}}));
    }
    return ino(name);
  }
  void damage_mark(const std::string& name) const {
    ASSERT_EQ(::fsetxattr(open(name, O_RDONLY).get(), kCopyXattr, "?", 1, 0), 0);
  }
  MarkedTree& walk() {
    attach_disk();
    const auto walked =
        tree_marked_.emplace(*arena_, entries_, tier()).walk(surroundings_.on_several_threads);
    EXPECT_TRUE(walked) << walked.error().message;
    return *tree_marked_;
  }
  std::vector<uint64_t> ids() {
    std::vector<uint64_t> result;
    for (const auto& [id, node] : tree_marked_->nodes()) result.push_back(id);
    return result;
  }
  MarkedTree::Node& its(uint64_t id) { return tree_marked_->nodes().at(id); }
  // The number that the tier has been told of a directory.
  uint64_t told_of(uint64_t directory) {
    Entry known;
    known.policy.ino = directory;
    return tier().names.id_of(known);
  }
  std::set<Place> names_of(uint64_t id) { return tree_marked_->names_of(its(id)); }

  const CatalogContent content_ = content(kBlock, {{1, 1}}, 5);
  std::optional<MarkedTree> tree_marked_;
};

TEST_F(MarkedTreeTest, EachMarkedInodeIsANode) {
  const uint64_t d = leave_directory("d", 2);
  const uint64_t clean = leave_clean("d/clean", 3, content_);
  (void)leave_cold("cold", 4, content_);
  (void)leave_dirty("dirty", 5, 6);
  (void)leave("new");
  (void)leave_dirty("promised nothing", 0);
  (void)leave_directory("new directory");
  walk();
  EXPECT_THAT(ids(), UnorderedElementsAre(2u, 3u, 4u, 5u));
  EXPECT_EQ(told_of(d), 2u);
  EXPECT_FALSE(its(2).is_file || its(2).is_dirty() || its(2).is_clean());
  EXPECT_TRUE(its(3).is_file && its(3).is_clean() && !its(3).is_dirty());
  EXPECT_EQ(its(3).handle.ino, clean);
  EXPECT_EQ(its(3).mark.content, content_);
  EXPECT_EQ(its(3).attributes.st_size, static_cast<off_t>(kBlock));
  ASSERT_EQ(its(3).places.size(), 1u);
  EXPECT_EQ(its(3).places[0].parent_ino, d);
  EXPECT_EQ(its(3).places[0].name, "clean");
  EXPECT_TRUE(its(4).is_file && !its(4).is_clean() && !its(4).is_dirty());
  EXPECT_EQ(its(4).mark.state, State::kCold);
  EXPECT_TRUE(its(5).is_dirty());
  EXPECT_EQ(its(5).mark.first_version, 6u);
  EXPECT_FALSE(its(3).seen || its(3).emptied) << "the catalog says";
  EXPECT_EQ(tier().store->new_id(), 6u) << "no number is given again";
}

TEST_F(MarkedTreeTest, AFileOfTwoNamesIsOneNode) {
  (void)leave_directory("d", 2);
  (void)leave_clean("f", 3, content_);
  ASSERT_EQ(::linkat(root(), "f", root(), "d/link", 0), 0);
  walk();
  EXPECT_EQ(its(3).places.size(), 2u);
  EXPECT_THAT(names_of(3), UnorderedElementsAre(Place{kCatalogRoot, "f"}, Place{2, "link"}));
}

TEST_F(MarkedTreeTest, ADamagedMarkIsNone) {
  (void)leave("f");
  damage_mark("f");
  (void)leave_directory("d", 2);
  damage_mark("d");
  (void)leave_clean("d/g", 3, content_);
  walk();
  EXPECT_THAT(ids(), ElementsAre(3u));
  EXPECT_THAT(names_of(3), ElementsAre(Place{4, "g"})) << "the directory gets another number";
}

TEST_F(MarkedTreeTest, ItFailsIfItCouldNotLookAtAll) {
  (void)leave_clean("f", 3, content_);
  attach_disk();
  MarkedTree tree(*arena_, entries_, tier());
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const auto walk_with = [&](int descriptors) {
    const rlimit few{.rlim_cur = static_cast<rlim_t>(descriptors), .rlim_max = before.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto walked = tree.walk(surroundings_.on_several_threads);
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
    return code_of(walked);
  };
  const int next = UniqueFd(::dup(root())).get();  // the first number that is free
  EXPECT_EQ(walk_with(next), EMFILE) << "the directory";
  EXPECT_EQ(walk_with(next + 1), EMFILE) << "the file in it";
  EXPECT_THAT(tree.nodes(), IsEmpty());
  EXPECT_EQ(code_of(tree.walk(surroundings_.on_several_threads)), 0);
  EXPECT_EQ(tree.nodes().size(), 1u);
}

TEST_F(MarkedTreeTest, ANodeIsDescribedAsItsUsersSeeIt) {
  (void)leave_clean("plain", 3, content_);
  (void)leave_clean("f", 4, content_);
  ASSERT_EQ(::fsetxattr(open("f").get(), "user.key", "value", 5, 0), 0);
  ASSERT_EQ(::fchmodat(root(), "f", 0604, 0), 0);
  walk();
  EXPECT_TRUE(its(3).plain && !its(4).plain);
  const auto plain = tree_marked_->describe(3, its(3));
  const auto described = tree_marked_->describe(4, its(4));
  ASSERT_TRUE(plain && described);
  EXPECT_EQ(plain->id, 3u);
  EXPECT_THAT(plain->xattrs, IsEmpty());
  EXPECT_EQ(described->id, 4u);
  EXPECT_EQ(described->mode, S_IFREG | 0604u);
  EXPECT_THAT(described->xattrs, ElementsAre(std::pair<std::string, std::string>("user.key", "value")));
  ASSERT_EQ(::unlinkat(root(), "plain", 0), 0);
  ASSERT_EQ(::unlinkat(root(), "f", 0), 0);
  EXPECT_EQ(code_of(tree_marked_->describe(3, its(3))), 0) << "nothing is looked at for it";
  EXPECT_EQ(code_of(tree_marked_->describe(4, its(4))), ESTALE);
}

TEST_F(MarkedTreeTest, WhatTheEntryHasOfAFileCounts) {
  (void)leave_clean("f", 3, content_);
  const uint64_t g = store("g");
  mark("g", {.state = State::kNone, .node_id = 4, .content = {}});
  ASSERT_TRUE(entries_.pinned(entry(g), kBlock, kPoolBytes));
  keep_ctime_of(g);
  await_later_ctime("g");
  ASSERT_EQ(::fchmodat(root(), "g", 0600, 0), 0);  // the daemon's own change
  walk();
  EXPECT_TRUE(its(4).pinned && !its(3).pinned);
  const timespec shown = shown_status("g").st_ctim, kept = its(4).attributes.st_ctim;
  EXPECT_TRUE(kept.tv_sec == shown.tv_sec && kept.tv_nsec == shown.tv_nsec);
  const timespec real = status("g").st_ctim;
  EXPECT_TRUE(kept.tv_sec != real.tv_sec || kept.tv_nsec != real.tv_nsec);
  EXPECT_TRUE(tree_marked_->describe(4, its(4))->pinned);
}

TEST_F(MarkedTreeTest, NewDirectoriesOnTheWayGetNumbers) {
  (void)leave_directory("d", 2);
  const uint64_t e = leave_directory("d/e"), f = leave_directory("d/e/f");
  (void)leave_directory("d/empty");
  (void)leave_clean("d/e/f/clean", 3, content_);
  MarkedTree& tree = walk();
  EXPECT_THAT(names_of(3), ElementsAre(Place{5, "clean"}));
  const auto& made = tree.new_directories();
  ASSERT_EQ(made.size(), 4u) << "of those that it needs";
  EXPECT_EQ(std::get<PutNode>(made[0]).node.id, 4u) << "the upper one comes first";
  EXPECT_TRUE(S_ISDIR(std::get<PutNode>(made[0]).node.mode));
  const auto& name_of_e = std::get<PutName>(made[1]);
  EXPECT_EQ(name_of_e.parent, 2u);
  EXPECT_EQ(name_of_e.name, "e");
  EXPECT_EQ(name_of_e.id, 4u);
  EXPECT_EQ(std::get<PutName>(made[3]).parent, 4u);
  EXPECT_EQ(std::get<PutName>(made[3]).name, "f");
  EXPECT_EQ(promised_number(copy_mark_of(open("d/e", O_RDONLY).get())), 4u) << "a successor finds it";
  EXPECT_THAT(names_of(3), ElementsAre(Place{5, "clean"}));
  EXPECT_EQ(made.size(), 4u);
  EXPECT_EQ(told_of(e), 4u);
  EXPECT_EQ(told_of(f), 5u);
}

TEST_F(MarkedTreeTest, ANameWhoseDirectoryHasGoneIsLeftOut) {
  (void)leave_directory("d");
  (void)leave_clean("d/f", 3, content_);
  ASSERT_EQ(::linkat(root(), "d/f", root(), "g", 0), 0);
  MarkedTree& tree = walk();
  ASSERT_EQ(::unlinkat(root(), "d/f", 0), 0);
  ASSERT_EQ(::unlinkat(root(), "d", AT_REMOVEDIR), 0);
  EXPECT_THAT(names_of(3), ElementsAre(Place{kCatalogRoot, "g"}));
  EXPECT_THAT(tree.new_directories(), IsEmpty());
  its(3).places.push_back({.parent_ino = 4711, .name = "h"});
  EXPECT_THAT(names_of(3), ElementsAre(Place{kCatalogRoot, "g"})) << "one that was never there";
}

TEST_F(MarkedTreeTest, AFileThatTheCatalogDoesNotHaveReplacesOneThatItHas) {
  (void)leave_directory("d", 2);
  (void)leave("d/new");
  (void)leave_dirty("unseen", 3);
  (void)leave_dirty("seen", 4);
  (void)leave_clean("clean", 5, content_);
  (void)leave_directory("directory");
  MarkedTree& tree = walk();
  its(4).seen = its(5).seen = true;
  const auto replaced = [&](const char* name) { return tree.is_replaced({kCatalogRoot, name}); };
  EXPECT_TRUE(tree.is_replaced({2, "new"}));
  EXPECT_TRUE(replaced("unseen"));
  EXPECT_FALSE(replaced("seen")) << "the catalog's content is its own";
  its(4).emptied = true;
  EXPECT_TRUE(replaced("seen")) << "it has begun anew";
  EXPECT_FALSE(replaced("clean"));
  its(5).seen = false;
  EXPECT_FALSE(replaced("clean")) << "its content is on the disk";
  (void)leave_clean("came later", 7, content_);
  mark("d/new", {.state = State::kNone, .node_id = 2, .content = {}});
  EXPECT_TRUE(replaced("came later"));
  EXPECT_TRUE(tree.is_replaced({2, "new"})) << "a directory's number is no file's";
}

TEST_F(MarkedTreeTest, NothingElseReplacesAFile) {
  const uint64_t d = leave_directory("d", 2);
  (void)leave("d/f");
  (void)leave_clean("clean", 5, content_);
  (void)leave_directory("directory");
  ASSERT_EQ(::symlinkat("d/f", root(), "link"), 0);
  ASSERT_EQ(::mkfifoat(root(), "pipe", 0600), 0);
  MarkedTree& tree = walk();
  for (const char* name : {"missing", "directory", "link", "pipe"})
    EXPECT_FALSE(tree.is_replaced({kCatalogRoot, name})) << name;
  EXPECT_FALSE(tree.is_replaced({4711, "f"})) << "no such directory";
  EXPECT_FALSE(tree.is_replaced({5, "f"})) << "a file has no names in it";
  EXPECT_TRUE(tree.is_replaced({2, "f"}));
  ASSERT_EQ(::unlinkat(root(), "d/f", 0), 0);
  ASSERT_EQ(::unlinkat(root(), "d", AT_REMOVEDIR), 0);
  EXPECT_FALSE(tree.is_replaced({2, "f"})) << d << " has gone";
}

}  // namespace kvcachefs::marked_tree_test
