// What a pool removes by itself, what its users make and what they change besides names
// (tier/pool/tree_changes.cc, tier/pool/tree_users.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/xattr.h>

#include <cerrno>
#include <thread>

#include "tests/support/pool_parts.h"
#include "tier/pool/tree.h"

namespace kvcachefs::tree_changes_test {

using test::code_of;
using NamesLeft = Tree::NamesLeft;

class TreeChangesTest : public test::PoolPartsTest {
 protected:
  TreeChangesTest() : PoolPartsTest(Upto::kTree) {}
  void link(const std::string& from, const std::string& to) {
    ASSERT_EQ(::linkat(root(), from.c_str(), root(), to.c_str(), 0), 0);
  }
  // An entry that the disk alone has, with three names.
  uint64_t make_cold_with_names() {
    const uint64_t f = store("f");
    link("f", "g");
    make_cold(f);
    link("f", "h");
    return f;
  }
  bool discard_cold(uint64_t its, unsigned most_names = UINT_MAX) {
    EntryTable::Shard& its_shard = shard(its);
    MutexLock lock(its_shard.mutex);
    return tree_->discard_cold(its_shard, *its_shard.find(its), RemovalReason::kDamaged, most_names);
  }
  bool has_pin_xattr(const std::string& name) const {
    return sys::get_xattr(open(name).get(), kPinnedXattr, {}).has_value();
  }
  int make_symlink(const std::string& target, const std::string& name) {
    NewInode inode;
    inode.mode = S_IFLNK | 0777;
    inode.target = target.c_str();
    return code_of(tree_->make(root(), name.c_str(), inode));
  }
  int set_pinned(uint64_t its, bool pinned) { return code_of(tree_->set_pinned(its, pinned)); }

  const std::string long_target_ = std::string(3000, 't');  // takes a page
};

TEST_F(TreeChangesTest, AFilesNamesGoAFewAtATime) {
  make_directory("d");
  const uint64_t f = store("d/f");
  link("d/f", "g");
  link("d/f", "h");
  set_lookups(f, 1);
  const UniqueFd file = open("g", O_RDONLY);
  EXPECT_EQ(tree_->remove_names(entry(f), file.get(), 2), NamesLeft::kFewer);
  EXPECT_EQ(is_there("d/f") + is_there("g") + is_there("h"), 1);
  EXPECT_EQ(tree_->remove_names(entry(f), file.get(), 0), NamesLeft::kFewer);
  EXPECT_EQ(tree_->remove_names(entry(f), file.get()), NamesLeft::kNone);
  EXPECT_EQ(is_there("d/f") + is_there("g") + is_there("h"), 0);
  EXPECT_EQ(tree_->empty_directories()->counts().ripe, 1u) << "d is empty";
  const std::vector<test::Heard::Name> all = {
      {ino("d"), f, "f"}, {arena_->tree().ino, f, "g"}, {arena_->tree().ino, f, "h"}};
  EXPECT_THAT(heard_.gone, ::testing::UnorderedElementsAreArray(all));
  EXPECT_EQ(tree_->remove_names(entry(f), file.get()), NamesLeft::kNone) << "there were none";
}

TEST_F(TreeChangesTest, AKernelThatDoesNotKnowAnInodeKnowsNoNameOfIt) {
  const uint64_t f = store("f");
  EXPECT_EQ(tree_->remove_names(entry(f), open("f", O_RDONLY).get()), NamesLeft::kNone);
  EXPECT_TRUE(heard_.gone.empty());
}

TEST_F(TreeChangesTest, WhatTheDiskAloneHasGoesWithAllItsNames) {
  attach_disk();
  const uint64_t f = make_cold_with_names();
  const uint64_t id = state(f).node_id;
  EXPECT_TRUE(node(id));
  EXPECT_TRUE(discard_cold(f));
  EXPECT_FALSE(state(f).exists);
  EXPECT_FALSE(is_there("f") || is_there("g") || is_there("h"));
  EXPECT_FALSE(node(id));
  EXPECT_EQ(tier().store->space().free_units(), tier().store->space().units() - 1) << "its space is free";
}

TEST_F(TreeChangesTest, ManyNamesOfOneGoOneAfterTheOther) {
  attach_disk();
  const uint64_t f = make_cold_with_names();
  EXPECT_FALSE(discard_cold(f, 2));
  EXPECT_TRUE(state(f).exists);
  EXPECT_FALSE(state(f).removed);
  EXPECT_TRUE(state(f).parked);
  EXPECT_TRUE(parked_->more_to_come());
  EXPECT_TRUE(discard_cold(f, 2));
  EXPECT_FALSE(state(f).exists);
}

TEST_F(TreeChangesTest, ALongLinkWaitsForRoom) {
  (void)fill_up();
  EXPECT_EQ(make_symlink("short", "s"), 0) << "it takes no page";
  std::thread evictor = answer_next(Room::Answer::kNothingToEvict);
  EXPECT_EQ(make_symlink(long_target_, "l"), ENOSPC);
  evictor.join();
  evictor = answer_next(Room::Answer::kTryAgain);
  EXPECT_EQ(make_symlink(long_target_, "l"), 0);
  evictor.join();
  EXPECT_EQ(make_symlink(long_target_, "l"), EEXIST);
}

TEST_F(TreeChangesTest, ADirectoryThatCannotLeaveIsNotNoted) {
  tree_->note_if_empty(root());
  tree_->note_if_empty(open(".", O_PATH).get());
  make_directory("d");
  (void)store("d/f");
  tree_->note_if_empty(open("d", O_PATH).get());
  EXPECT_EQ(tree_->empty_directories()->counts().ripe, 0u);
}

TEST_F(TreeChangesTest, ANewDirectoryRestsAndTheCatalogHearsOfItWithDurability) {
  attach_disk(Durability::kNone);
  (void)make_known_directory("d");
  tree_->made(handle("d"), true, root(), "d");
  EXPECT_EQ(tree_->empty_directories()->counts().resting, 1u);
  EXPECT_EQ(catalogued("d"), 0u);
  (void)disk_->exchange_durability(Durability::kWriteback);
  (void)make_known_directory("e");
  tree_->made(handle("e"), true, root(), "e");
  EXPECT_NE(catalogued("e"), 0u);
  (void)store("f");
  tree_->made(handle("f"), false, root(), "f");
  EXPECT_EQ(catalogued("f"), 0u) << "a file comes with its content";
  EXPECT_EQ(tree_->empty_directories()->counts().resting, 2u);
}

TEST_F(TreeChangesTest, ChangedAttributesGoToTheCatalog) {
  attach_disk();
  const uint64_t f = store("f");
  make_clean(f);
  ASSERT_EQ(::fchmodat(root(), "f", 0604, 0), 0);
  tree_->attributes_changed(f);
  tree_->attributes_changed(4711);
  EXPECT_EQ(node(state(f).node_id)->mode & 07777, 0604u);
}

TEST_F(TreeChangesTest, WhatChangesWhileRestoringIsNoted) {
  const uint64_t f = store("f");
  tree_->attributes_changed(f);
  disk_->set_restoring(true);
  tree_->attributes_changed(f);
  tree_->attributes_changed(arena_->tree().ino);
  EXPECT_EQ(disk_->end_restoring(), std::unordered_set<uint64_t>{f});
}

TEST_F(TreeChangesTest, AChangeByUsersEndsAKeptCtime) {
  const uint64_t f = store("f");
  const struct stat before = status("f");
  keep_ctime_of(f);
  await_later_ctime("f");
  ASSERT_EQ(::fchmodat(root(), "f", 0604, 0), 0);
  ASSERT_EQ(shown_status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  tree_->attributes_changed(f);
  EXPECT_NE(shown_status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec);
}

TEST_F(TreeChangesTest, TheKernelIsToldToLookAgain) {
  tree_->look_again(11, "f");
  EXPECT_EQ(heard_.come, (std::vector<test::Heard::Name>{{11, 0, "f"}}));
}

TEST_F(TreeChangesTest, APinnedEntryStaysAndASuccessorKnows) {
  const uint64_t f = store("f");
  EXPECT_EQ(set_pinned(f, true), 0);
  EXPECT_EQ(set_pinned(f, true), 0);
  EXPECT_TRUE(state(f).pinned);
  EXPECT_TRUE(has_pin_xattr("f"));
  EXPECT_EQ(entries_.sums().pinned_bytes(), kBlock);
  EXPECT_FALSE(entries_.candidates().next_victim(false));
  EXPECT_EQ(set_pinned(f, false), 0);
  EXPECT_FALSE(has_pin_xattr("f"));
  EXPECT_EQ(entries_.sums().pinned_bytes(), 0u);
  EXPECT_TRUE(entries_.candidates().next_victim(false));
}

TEST_F(TreeChangesTest, WhatCannotBePinned) {
  EXPECT_EQ(set_pinned(4711, true), ESTALE);
  EXPECT_EQ(set_pinned(make_known_directory("d"), true), EPERM);
  const uint64_t f = store("f", std::string(3 * kBlock, 'x'));
  const uint64_t g = store("g");
  EXPECT_EQ(set_pinned(g, true), 0);
  capacity_->limit().set_size(6 * kBlock);  // half of it may be pinned
  const auto refused = tree_->set_pinned(f, true);
  ASSERT_EQ(code_of(refused), ENOSPC);
  EXPECT_EQ(refused.error().message, "pool p: 4K are pinned and pinned_max is 12K: no room to pin 12K more");
  EXPECT_FALSE(state(f).pinned);
  EXPECT_FALSE(has_pin_xattr("f"));
}

TEST_F(TreeChangesTest, APinnedEntryComesToMemoryAndTheCatalogKnows) {
  attach_disk();
  const uint64_t f = store("f");
  make_cold(f);
  EXPECT_EQ(set_pinned(f, true), 0);
  EXPECT_EQ(tier().promoter.queued(), 1u);
  EXPECT_TRUE(node(state(f).node_id)->pinned);
  EXPECT_EQ(set_pinned(f, false), 0);
  EXPECT_FALSE(node(state(f).node_id)->pinned);
}

TEST_F(TreeChangesTest, ALostPinIsLostForASuccessorToo) {
  const uint64_t f = store("f");
  ASSERT_EQ(set_pinned(f, true), 0);
  const struct stat before = status("f");
  await_later_ctime("f");
  tree_->lost_its_pin(entry(f));
  EXPECT_FALSE(has_pin_xattr("f"));
  EXPECT_NE(status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec);
  EXPECT_EQ(shown_status("f").st_ctim.tv_nsec, before.st_ctim.tv_nsec) << "no user has changed it";
}

TEST_F(TreeChangesTest, APriorityDecidesWhoLeavesFirst) {
  entries_.candidates().set_policy("priority");
  const uint64_t f = store("f");
  const uint64_t g = store("g");
  tree_->set_priority(f, 5);
  tree_->set_priority(4711, 5);
  EXPECT_EQ(entries_.candidates().next_victim(false)->ino, g);
  EXPECT_EQ(entries_.candidates().next_victim(false)->ino, f);
}

TEST_F(TreeChangesTest, WhatIsMadeBelongsToItsUser) {
  NewInode inode;
  inode.mode = S_IFREG | 06755;
  inode.uid = inode.gid = 65534;
  auto file = tree_->give(root(), tree_->make_file(root(), "f", inode.mode), inode);
  ASSERT_TRUE(file);
  EXPECT_EQ(file->attributes.st_uid, 65534u);
  EXPECT_EQ(file->attributes.st_gid, 65534u);
  EXPECT_EQ(file->attributes.st_mode, inode.mode) << "a change of owner takes no bit away";
  EXPECT_EQ(file->handle.ino, ino("f"));
  EXPECT_EQ(code_of(tree_->make_file(root(), "f", inode.mode)), EEXIST);

  NewInode directory = inode;
  directory.mode = S_IFDIR | 02755;
  ASSERT_EQ(code_of(tree_->make(root(), "d", directory)), 0);
  const UniqueFd d = open("d", O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::fchmod(d.get(), 02755), 0);
  auto within = tree_->give(d.get(), tree_->make_file(d.get(), "f", inode.mode), inode);
  ASSERT_TRUE(within);
  EXPECT_EQ(within->attributes.st_gid, 0u) << "the directory's";

  auto nameless = tree_->give(root(), tree_->make_file(root(), "", inode.mode, false), inode);
  ASSERT_TRUE(nameless);
  EXPECT_EQ(nameless->attributes.st_nlink, 0u);
  EXPECT_EQ(code_of(tree_->give(root(), fail(EMFILE), inode)), EMFILE);

  NewInode pipe = inode;
  pipe.mode = S_IFIFO | 0600;
  ASSERT_EQ(code_of(tree_->make(root(), "p", pipe)), 0);
  EXPECT_EQ(code_of(tree_->make(root(), "p", pipe)), EEXIST);
  tree_->unmake(root(), "p", false);
  tree_->unmake(root(), "f", false);
  EXPECT_FALSE(is_there("p") || is_there("f"));
}

TEST_F(TreeChangesTest, AChangeOfAttributesIsToldOnce) {
  attach_disk();
  const uint64_t f = store("f");
  make_clean(f);
  const auto stored = [&] { return node(state(f).node_id); };
  AttributeChange wanted;
  wanted.mode = 0640;
  wanted.gid = 65534;
  wanted.times = {{{7, 0}, {8, 0}}};
  bool begun = false;
  ASSERT_EQ(code_of(tree_->change(f, wanted, begun)), 0);
  EXPECT_TRUE(begun);
  commit();
  ASSERT_TRUE(stored());
  EXPECT_EQ(stored()->mode, static_cast<uint32_t>(S_IFREG | 0640));
  EXPECT_EQ(stored()->uid, 0u);
  EXPECT_EQ(stored()->gid, 65534u);

  begun = false;
  EXPECT_EQ(code_of(tree_->change(12345, wanted, begun)), ESTALE);
  EXPECT_FALSE(begun) << "the caller may answer the error";

  EXPECT_EQ(code_of(tree_->set_xattr(f, "user.a", "1", 0)), 0);
  EXPECT_EQ(code_of(tree_->set_xattr(f, "user.a", "2", XATTR_CREATE)), EEXIST);
  commit();
  EXPECT_EQ(stored()->xattrs.size(), 1u);
  EXPECT_EQ(code_of(tree_->remove_xattr(f, "user.a")), 0);
  EXPECT_EQ(code_of(tree_->remove_xattr(f, "user.a")), ENODATA);
  commit();
  EXPECT_TRUE(stored()->xattrs.empty());
}

}  // namespace kvcachefs::tree_changes_test
