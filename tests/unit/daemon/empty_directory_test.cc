#include "daemon/cli/empty_directory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/unique_fd.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::empty_directory_test {

class EmptyDirectoryTest : public ::testing::Test {
 protected:
  EmptyDirectoryTest() { test::make_directory(top_); }
  int empty() const {
    const test::File directory(top_, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const auto emptied = empty_directory(directory.fd());
    return emptied ? 0 : emptied.error().code;
  }
  std::string in_top(const std::string& name) const { return top_ + "/" + name; }

  test::DiskDirectory place_;
  const std::string top_ = place_ / "top";
};

TEST_F(EmptyDirectoryTest, NothingIsLeft) {
  EXPECT_EQ(empty(), 0) << "nothing is there";
  for (int number = 0; number < 300; ++number) test::write_file(in_top(std::to_string(number)), "x");
  test::make_directory(in_top("empty"));
  test::make_directory(in_top("full"));
  test::write_file(in_top("full/file"), "x");
  ASSERT_EQ(::mkfifo(in_top("pipe").c_str(), 0600), 0);
  ASSERT_EQ(::symlink("nowhere", in_top("dangling").c_str()), 0);
  EXPECT_EQ(empty(), 0);
  EXPECT_TRUE(test::list(top_).empty());
}

TEST_F(EmptyDirectoryTest, ATreeMayBeDeeperThanAPathIsLong) {
  // Each level has a name as those that the directories get which are moved up.
  UniqueFd directory(::open(top_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const std::string name = "removed-0";
  for (int depth = 0; depth < 1000; ++depth) {
    ASSERT_EQ(::mkdirat(directory.get(), name.c_str(), 0700), 0);
    ASSERT_EQ(::mkdirat(directory.get(), "removed-1", 0700), 0);
    UniqueFd below(::openat(directory.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(below);
    directory = std::move(below);
  }
  EXPECT_EQ(empty(), 0);
  EXPECT_TRUE(test::list(top_).empty());
}

TEST_F(EmptyDirectoryTest, ALinkIsRemovedAndNotFollowed) {
  test::make_directory(place_ / "other");
  test::write_file(place_ / "other/file", "x");
  ASSERT_EQ(::symlink((place_ / "other").c_str(), in_top("link").c_str()), 0);
  test::make_directory(in_top("directory"));
  ASSERT_EQ(::symlink((place_ / "other").c_str(), in_top("directory/link").c_str()), 0);
  EXPECT_EQ(empty(), 0);
  EXPECT_TRUE(test::list(top_).empty());
  EXPECT_TRUE(test::exists(place_ / "other/file"));
}

TEST_F(EmptyDirectoryTest, WhatCannotBeRemovedIsToldAfterAllElseIs) {
  KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
  for (const char* name : {"a", "m", "z"}) {
    test::make_directory(in_top(name));
    test::make_directory(in_top(name) + "/below");
    test::write_file(in_top(name) + "/file", "x");
  }
  const std::string mounted = in_top("m/below");
  ASSERT_EQ(::mount("tmpfs", mounted.c_str(), "tmpfs", 0, "size=64k"), 0);
  const int code = empty();
  EXPECT_EQ(::umount(mounted.c_str()), 0);
  EXPECT_EQ(code, EBUSY);
  EXPECT_EQ(test::list(top_), std::vector<std::string>{"m"});
  EXPECT_EQ(test::list(in_top("m")), std::vector<std::string>{"below"});
  EXPECT_EQ(empty(), 0);
}

}  // namespace kvcachefs::empty_directory_test
