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

// A process that changes into the depth makes paths that no call takes.
class DeepNameTest : public TreeNameTest {
 protected:
  static constexpr int kLevels = 30;  // of 200 bytes: 6,000

  void SetUp() override {
    TreeNameTest::SetUp();
    if (IsSkipped()) return;
    int at = arena_->tree_fd();
    for (int level = 0; level < kLevels; ++level) {
      ASSERT_EQ(::mkdirat(at, name_.c_str(), 0700), 0);
      bottom_ = UniqueFd(::openat(at, name_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      at = bottom_.get();
    }
    file_ = UniqueFd(::openat(at, "f", O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(file_);
  }
  Result<TreeName> sought(int fd) {
    auto found = find_name(*arena_, fd);
    if (found) return found;
    EXPECT_EQ(found.error().code, ENAMETOOLONG);
    EXPECT_TRUE(test::eventually([&] {
      while (arena_->deep_names().step(*arena_)) {
      }
      return !arena_->deep_names().seeks();
    }));
    return find_name(*arena_, fd);
  }
  void expect_is(const Result<TreeName>& found, int parent, const std::string& name) {
    ASSERT_TRUE(found) << found.error().code;
    EXPECT_TRUE(found->is_deep);
    EXPECT_EQ(found->name, name);
    EXPECT_EQ(sys::stat_of(found->parent.get())->st_ino, sys::stat_of(parent)->st_ino);
  }

  const std::string name_ = std::string(200, 'd');
  UniqueFd bottom_;
  UniqueFd file_;
};

TEST_F(DeepNameTest, AFileIsFoundByAWalk) {
  expect_is(sought(file_.get()), bottom_.get(), "f");
  EXPECT_FALSE(arena_->deep_names().seeks());
  EXPECT_FALSE(arena_->deep_names().step(*arena_)) << "nothing is sought";
}

// One piece ends behind the last directory.
TEST_F(DeepNameTest, AWalkOfTheSmallestPiecesEnds) {
  ASSERT_EQ(find_name(*arena_, file_.get()).error().code, ENAMETOOLONG);
  int pieces = 0;
  while (arena_->deep_names().step(*arena_, 0)) ++pieces;
  EXPECT_GE(pieces, kLevels);
  EXPECT_FALSE(arena_->deep_names().seeks());
  expect_is(find_name(*arena_, file_.get()), bottom_.get(), "f");
}

TEST_F(DeepNameTest, ADirectoryIsFoundInItsParent) {
  const UniqueFd above(::openat(bottom_.get(), "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  expect_is(find_name(*arena_, bottom_.get()), above.get(), name_);
}

TEST_F(DeepNameTest, ADirectoryAmongManyIsFoundByAWalk) {
  for (int i = 0; i < 1100; ++i) ASSERT_EQ(::mkdirat(bottom_.get(), std::to_string(i).c_str(), 0700), 0);
  for (const std::string name : {"0", "500", "1099"}) {
    const UniqueFd directory(::openat(bottom_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    expect_is(sought(directory.get()), bottom_.get(), name);
  }
}

TEST_F(DeepNameTest, EachNameIsFoundUntilItIsGone) {
  ASSERT_EQ(::linkat(bottom_.get(), "f", bottom_.get(), "g", 0), 0);
  auto first = sought(file_.get());
  ASSERT_TRUE(first);
  ASSERT_EQ(::unlinkat(bottom_.get(), first->name.c_str(), 0), 0);
  // A descriptor leads to another name of its inode when it is opened anew.
  const UniqueFd again(::openat(bottom_.get(), first->name == "f" ? "g" : "f", O_PATH | O_CLOEXEC));
  expect_is(sought(again.get()), bottom_.get(), first->name == "f" ? "g" : "f");
  ASSERT_EQ(::unlinkat(bottom_.get(), first->name == "f" ? "g" : "f", 0), 0);
  EXPECT_EQ(find_name(*arena_, again.get()).error().code, ENOENT);
  EXPECT_FALSE(arena_->deep_names().seeks());
}

TEST_F(DeepNameTest, WhatHasTakenItsPlaceIsNotIt) {
  ASSERT_TRUE(sought(file_.get()));
  ASSERT_EQ(::renameat(bottom_.get(), "f", bottom_.get(), "moved"), 0);
  ASSERT_EQ(::symlinkat("moved", bottom_.get(), "f"), 0);
  expect_is(sought(file_.get()), bottom_.get(), "moved");
}

}  // namespace kvcachefs::tree_name_test
