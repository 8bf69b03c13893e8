#include "alloc/tree_name.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/arena_test.h"

namespace kvcachefs::tree_name_test {

using TreeNameTest = test::ArenaTest;

TEST_F(TreeNameTest, AnInodeLeadsToItsDirectoryAndName) {
  make_directory("a");
  make_directory("a/b");
  const UniqueFd deep = make("a/b/f");
  auto found = find_name(*arena_, deep.get());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->directory, "a/b");
  EXPECT_EQ(found->name, "f");
  EXPECT_EQ(sys::stat_of(found->parent.get())->st_ino, sys::stat_of(open("a/b", O_RDONLY).get())->st_ino);
  const UniqueFd high = make("g");
  found = find_name(*arena_, high.get());
  ASSERT_TRUE(found);
  EXPECT_EQ(found->directory, "");
  EXPECT_EQ(found->name, "g");
  ASSERT_EQ(::unlinkat(arena_->tree_fd(), "g", 0), 0);
  EXPECT_EQ(find_name(*arena_, high.get()).error().code, ENOENT);
}

}  // namespace kvcachefs::tree_name_test
