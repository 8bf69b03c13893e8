#include "fs/control/readable_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

#include "base/sys.h"
#include "tests/support/arena_test.h"

namespace kvcachefs::test {

using ReadableTreeTest = ArenaTest;

// An entry that lies deep in alternating directories costs its depth each time.
TEST_F(ReadableTreeTest, ANameCostsItsDepth) {
  constexpr int kDepth = 300;
  const std::atomic<bool> ended = false;
  std::string name;
  for (int depth = 0; depth < kDepth; ++depth) {
    name += "d";
    ASSERT_EQ(::mkdirat(arena_->tree_fd(), name.c_str(), 0755), 0);
    name += "/";
  }
  auto root = sys::duplicate(arena_->tree_fd());
  ASSERT_TRUE(root);
  const Rights rights(::geteuid(), ::getegid(), ::getpid());
  QueryWork work([] {}, ended);
  ReadableTree tree(std::move(*root), rights, work);
  EXPECT_EQ(tree.look_up(name + "e").error().code, ENOENT);
  EXPECT_GE(work.calls(), uint64_t{kDepth});
  while (!work.is_cut()) (void)tree.look_up("e");
  EXPECT_GE(work.calls(), QueryWork::kMostCalls);
  EXPECT_EQ(tree.look_up("e").error().code, ETIME);
  EXPECT_EQ(tree.readable("e").error().code, ETIME);
  EXPECT_EQ(tree.file_at("e"), std::nullopt);
}

}  // namespace kvcachefs::test
