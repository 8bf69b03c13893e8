// Paths that users control: no path leads out of the tree, and the calls for one component take no path.
#include "base/sys_beneath.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <string>

#include "base/sys.h"
#include "gtest/gtest.h"
#include "tests/support/files.h"

namespace kvcachefs::sys_beneath_test {

class SysBeneathTest : public ::testing::Test {
 protected:
  SysBeneathTest() {
    char pattern[] = "/tmp/kv-test-beneath-XXXXXX";
    root_ = ::mkdtemp(pattern);
    test::make_directory(root_ + "/tree");
    test::make_directory(root_ + "/tree/a");
    test::make_directory(root_ + "/tree/a/b");
    test::write_file(root_ + "/tree/a/b/file", "");
    test::write_file(root_ + "/outside", "");
    EXPECT_EQ(::symlink("a", (root_ + "/tree/link").c_str()), 0);
    EXPECT_EQ(::symlink((root_ + "/outside").c_str(), (root_ + "/tree/a/out").c_str()), 0);
    tree_ = UniqueFd(::open((root_ + "/tree").c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  }
  ~SysBeneathTest() override { std::filesystem::remove_all(root_); }

  int error_of(const char* path, int flags = O_PATH) {
    const auto fd = sys::open_beneath(tree_.get(), path, flags);
    return fd ? 0 : fd.error().code;
  }

  std::string root_;
  UniqueFd tree_;
};

TEST_F(SysBeneathTest, OpensWhatIsBelowAndThroughNoLink) {
  EXPECT_EQ(error_of("a/b/file"), 0);
  EXPECT_EQ(error_of("."), 0);
  EXPECT_EQ(error_of("a/b/missing"), ENOENT);
  EXPECT_EQ(error_of("link/b/file"), ELOOP);
  EXPECT_EQ(error_of("a/out"), ELOOP);
  EXPECT_EQ(error_of("a/out", O_PATH | O_NOFOLLOW), 0) << "the link itself";
  EXPECT_EQ(error_of("../outside"), EXDEV);
  EXPECT_EQ(error_of((root_ + "/outside").c_str()), EXDEV);
  EXPECT_EQ(error_of(std::string(5000, 'x').c_str()), ENAMETOOLONG);
}

TEST_F(SysBeneathTest, EntersNoMount) {
  const UniqueFd root(::open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
  const auto fd = sys::open_beneath(root.get(), "proc/self/status", O_RDONLY);
  ASSERT_FALSE(fd);
  EXPECT_EQ(fd.error().code, EXDEV);
}

TEST_F(SysBeneathTest, ALinkInARootStaysInIt) {
  EXPECT_TRUE(sys::open_in_root(tree_.get(), "/link/b/file", O_PATH));
  EXPECT_EQ(::symlink("/a/b/file", (root_ + "/tree/absolute").c_str()), 0);
  EXPECT_TRUE(sys::open_in_root(tree_.get(), "absolute", O_PATH));
  for (const char* const path : {"a/out", "../outside", "/a/../../outside"})
    EXPECT_EQ(sys::open_in_root(tree_.get(), path, O_PATH).error().code, ENOENT) << path;
}

TEST_F(SysBeneathTest, CallsWithADirectoryTakeOneComponent) {
  const int tree = tree_.get();
  for (const char* name : {"a/b", "..", "a/", "/tmp"}) {
    EXPECT_EQ(sys::open_at(tree, name, O_PATH).error().code, EINVAL) << name;
    EXPECT_EQ(sys::handle_at(tree, name).error().code, EINVAL) << name;
    EXPECT_EQ(sys::stat_at(tree, name).error().code, EINVAL) << name;
    EXPECT_EQ(sys::make_directory_at(tree, name, 0700).error().code, EINVAL) << name;
    EXPECT_EQ(sys::make_node_at(tree, name, S_IFREG, 0).error().code, EINVAL) << name;
    EXPECT_EQ(sys::symlink_at("x", tree, name).error().code, EINVAL) << name;
    EXPECT_EQ(sys::link_to(tree, tree, name).error().code, EINVAL) << name;
    EXPECT_EQ(sys::unlink_at(tree, name, 0).error().code, EINVAL) << name;
    EXPECT_EQ(sys::rename_at(tree, "a", tree, name, 0).error().code, EINVAL) << name;
    EXPECT_EQ(sys::rename_at(tree, name, tree, "a", 0).error().code, EINVAL) << name;
  }
  EXPECT_TRUE(sys::stat_at(tree, "a"));
}

}  // namespace kvcachefs::sys_beneath_test
