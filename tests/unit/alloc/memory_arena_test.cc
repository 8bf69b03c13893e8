// A pool's tmpfs: its limits, its inodes by handle, their names, and what a successor finds of it.
#include "alloc/memory_arena.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "tests/support/arena_test.h"
#include "tests/support/files.h"

namespace kvcachefs::memory_arena_test {

using MemoryArenaTest = test::ArenaTest;

TEST_F(MemoryArenaTest, TheTreesRootIsAsAsked) {
  struct stat root {};
  ASSERT_EQ(::fstat(arena_->tree_fd(), &root), 0);
  EXPECT_EQ(root.st_mode & 07777, 01770u);
  EXPECT_EQ(root.st_uid, 5u);
  EXPECT_EQ(root.st_gid, 6u);
  EXPECT_EQ(root.st_ino, arena_->tree().ino);
}

TEST_F(MemoryArenaTest, ItsSizeCannotBeExceededAndCanBeChanged) {
  const UniqueFd file = make("f");
  EXPECT_EQ(::posix_fallocate(file.get(), 0, kSizeBytes + 4096), ENOSPC);
  ASSERT_EQ(::posix_fallocate(file.get(), 0, kSizeBytes / 2), 0);
  EXPECT_EQ(arena_->usage().used_bytes(), kSizeBytes / 2);
  const auto smaller = arena_->resize(kSizeBytes / 4);
  ASSERT_FALSE(smaller);
  EXPECT_EQ(smaller.error().code, EINVAL) << "more is in use";
  ASSERT_TRUE(arena_->resize(2 * kSizeBytes));
  EXPECT_EQ(arena_->usage().size_bytes, 2 * kSizeBytes);
  EXPECT_EQ(::posix_fallocate(file.get(), 0, kSizeBytes + 4096), 0);
}

TEST_F(MemoryArenaTest, InodesTakeHalfOfThePoolAtMost) {
  const ArenaUsage before = arena_->usage();
  EXPECT_EQ(before.inodes, kSizeBytes / 2 / kInodeBytes + kFreeInodes);
  ASSERT_TRUE(arena_->resize(2 * kSizeBytes));
  EXPECT_EQ(arena_->usage().inodes, kSizeBytes / kInodeBytes + kFreeInodes);
  EXPECT_LE((ArenaUsage{.inodes = before.inodes}).inode_bytes(), kSizeBytes / 2);
}

TEST_F(MemoryArenaTest, InodesCountAgainstTheSize) {
  uint64_t made = arena_->usage().inodes - arena_->usage().free_inodes;
  for (; made < kFreeInodes; ++made) make(std::to_string(made));
  EXPECT_EQ(arena_->usage().used_bytes(), 0u);
  const std::string name(200, 'n');
  for (int more = 1; more <= 10; ++more) {
    make(name + std::to_string(more));
    EXPECT_EQ(arena_->usage().used_bytes(), static_cast<uint64_t>(more) * kInodeBytes);
  }
}

TEST_F(MemoryArenaTest, DroppedPagesAreFreeAndTheSizeStays) {
  const UniqueFd file = make("f");
  ASSERT_EQ(::ftruncate(file.get(), 100'000), 0);
  ASSERT_EQ(::fallocate(file.get(), FALLOC_FL_KEEP_SIZE, 0, 200'000), 0);
  ASSERT_GT(arena_->usage().used_bytes(), 0u);
  ASSERT_TRUE(arena_->drop_pages(file.get()));
  EXPECT_EQ(arena_->usage().used_bytes(), 0u) << "what lay beyond its end too";
  struct stat attributes {};
  ASSERT_EQ(::fstat(file.get(), &attributes), 0);
  EXPECT_EQ(attributes.st_size, 100'000);
}

TEST_F(MemoryArenaTest, AnInodeIsOpenedByItsHandleAsLongAsItLives) {
  auto handle = sys::handle_of(make("f").get());
  ASSERT_TRUE(handle);
  ASSERT_EQ(::renameat(arena_->tree_fd(), "f", arena_->tree_fd(), "g"), 0);
  {
    const auto opened = arena_->open(*handle, O_RDONLY);
    ASSERT_TRUE(opened);
    EXPECT_EQ(*arena_->name_of(opened->get()), "g");
  }
  ASSERT_EQ(::unlinkat(arena_->tree_fd(), "g", 0), 0);
  const auto gone = arena_->open(*handle, O_RDONLY);
  ASSERT_FALSE(gone);
  EXPECT_EQ(gone.error().code, ESTALE);
}

TEST_F(MemoryArenaTest, ARemovedNameIsToldFromOneThatLooksLikeIt) {
  make_directory("d");
  const UniqueFd removed = make("d/f");
  ASSERT_EQ(::unlinkat(arena_->tree_fd(), "d/f", 0), 0);
  const UniqueFd alike = make("d/f (deleted)");
  EXPECT_EQ(arena_->name_of(removed.get()).error().code, ENOENT);
  EXPECT_EQ(*arena_->name_of(alike.get()), "d/f (deleted)");
}

TEST_F(MemoryArenaTest, ASuccessorFindsTheSameTree) {
  const UniqueFd file = make("f");
  ASSERT_EQ(::ftruncate(file.get(), 123), 0);
  auto adopted = MemoryArena::adopt(path_);
  ASSERT_TRUE(adopted) << adopted.error().message;
  EXPECT_FALSE(adopted->tree_is_removed());
  EXPECT_EQ(adopted->tree().ino, arena_->tree().ino);
  EXPECT_EQ(MemoryArena::adopt(place_.path()).error().code, ENOENT) << "no tmpfs";
}

TEST_F(MemoryArenaTest, ARemovedTreeIsFoundAmongNamelessInodes) {
  make_directory("d");
  EXPECT_EQ(arena_->remove_tree().error().code, ENOTEMPTY);
  ASSERT_EQ(::unlinkat(arena_->tree_fd(), "d", AT_REMOVEDIR), 0);
  ASSERT_TRUE(arena_->remove_tree());
  const std::vector<int> nameless = {arena_->tree_fd()};
  auto adopted = MemoryArena::adopt(path_, nameless);
  ASSERT_TRUE(adopted);
  EXPECT_TRUE(adopted->tree_is_removed());
  EXPECT_EQ(adopted->tree().ino, arena_->tree().ino);
}

TEST_F(MemoryArenaTest, TheLastOwnerUnmountsItAndOpenFilesKeepTheirBytes) {
  const UniqueFd file = make("f");
  ASSERT_EQ(::pwrite(file.get(), "bytes", 5, 0), 5);
  arena_.reset();
  EXPECT_FALSE(test::exists(path_));
  EXPECT_EQ(test::read_at(file.get(), 0, 5), "bytes");
}

}  // namespace kvcachefs::memory_arena_test
