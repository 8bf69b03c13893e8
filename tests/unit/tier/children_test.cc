#include "tier/children.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <thread>
#include <utility>

#include "base/mutex.h"
#include "base/sys.h"
#include "tests/support/arena_test.h"

namespace kvcachefs::children_test {

class ChildrenTest : public ::testing::Test {
 protected:
  ChildrenTest() {
    std::string path = std::filesystem::temp_directory_path() / "kv-children-XXXXXX";
    directory_ = ::mkdtemp(path.data());
  }
  ~ChildrenTest() override { std::filesystem::remove_all(directory_); }

  void make_file(const std::string& name) { std::ofstream(directory_ / name) << name; }
  std::map<std::string, Child> children(const std::filesystem::path& path, int flags) {
    std::map<std::string, Child> found;
    auto fd = sys::open_at(AT_FDCWD, path.c_str(), flags);
    (void)for_each_child(std::move(*fd), [&](const Child& child) { found[child.name] = child; });
    return found;
  }

  std::filesystem::path directory_;
};

TEST_F(ChildrenTest, TellsNumberAndKind) {
  make_file("file");
  make_file("..odd");
  std::filesystem::create_directory(directory_ / "directory");
  std::filesystem::create_symlink("file", directory_ / "link");
  const auto found = children(directory_, O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(found.size(), 4u);
  for (const auto& [name, child] : found) {
    EXPECT_EQ(child.is_regular, name == "file" || name == "..odd") << name;
    EXPECT_EQ(child.is_directory, name == "directory") << name;
    EXPECT_EQ(child.ino, sys::stat_at(AT_FDCWD, (directory_ / name).c_str())->st_ino) << name;
  }
}

TEST_F(ChildrenTest, ReadsMoreThanOneBuffer) {
  for (int i = 0; i < 2000; ++i) make_file(std::string(200, 'x') + std::to_string(i));
  EXPECT_EQ(children(directory_, O_RDONLY | O_DIRECTORY).size(), 2000u);
}

TEST_F(ChildrenTest, AreNoneWhereNothingCanBeRead) {
  make_file("file");
  EXPECT_TRUE(children(directory_ / "file", O_RDONLY).empty());
  EXPECT_TRUE(children(directory_, O_PATH).empty());
}

using WalkTest = test::ArenaTest;

TEST_F(WalkTest, ComesToADirectoryBeforeItsChildren) {
  make_directory("a");
  make_directory("a/b");
  (void)make("a/b/f");
  ASSERT_EQ(::symlinkat("a", arena_->tree_fd(), "s"), 0);
  std::vector<std::string> names;
  (void)walk_tree(*arena_, [&](int directory, uint64_t directory_ino, const Child& child) {
    EXPECT_EQ(sys::stat_of(directory)->st_ino, directory_ino);
    names.push_back(child.name);
  });
  ASSERT_EQ(names.size(), 4u) << "a link is not followed";
  const auto place = [&](const char* name) { return std::ranges::find(names, name) - names.begin(); };
  EXPECT_LT(place("a"), place("b"));
  EXPECT_LT(place("b"), place("f"));
  EXPECT_LT(place("s"), 4);
}

// As users remove directories while a pool is walked: before one is looked at, and before its turn has come.
TEST_F(WalkTest, WhatGoesMeanwhileIsNoFailure) {
  for (const char* name : {"a", "b", "b/in-b", "c", "c/in-c"}) make_directory(name);
  const auto remove = [&](const char* name) {
    EXPECT_EQ(::unlinkat(arena_->tree_fd(), name, AT_REMOVEDIR), 0) << name;
  };
  const auto walked = walk_tree(*arena_, [&](int, uint64_t, const Child& child) {
    if (child.name == "a") remove("a");
    if (child.name == "in-b") remove("c/in-c"), remove("c");
    if (child.name == "in-c") remove("b/in-b"), remove("b");
  });
  EXPECT_TRUE(walked) << walked.error().message;
}

TEST_F(WalkTest, OnSeveralThreadsComesToEachNameOnce) {
  constexpr int kDirectories = 10, kFiles = 200;
  for (int d = 0; d < kDirectories; ++d) {
    make_directory("d" + std::to_string(d));
    for (int f = 0; f < kFiles; ++f) (void)make(fmt::format("d{}/f{}", d, f));
  }
  Mutex mutex;
  std::set<std::pair<uint64_t, std::string>> files;
  std::set<std::string> directories;
  std::atomic<unsigned> threads = 0;
  const auto walked = walk_tree(
      *arena_, &test::on_three_threads,
      [&](int, uint64_t, const Child& child) { EXPECT_TRUE(directories.insert(child.name).second); },
      [&](int directory, uint64_t directory_ino, const Child& child) {
        thread_local bool is_first = true;
        if (std::exchange(is_first, false)) ++threads;
        while (threads < 2) std::this_thread::yield();
        EXPECT_TRUE(sys::stat_at(directory, child.name.c_str())) << "the directory is still open";
        MutexLock lock(mutex);
        EXPECT_TRUE(files.emplace(directory_ino, child.name).second);
      });
  EXPECT_TRUE(walked);
  EXPECT_EQ(directories.size(), size_t{kDirectories});
  EXPECT_EQ(files.size(), size_t{kDirectories * kFiles});
}

}  // namespace kvcachefs::children_test
