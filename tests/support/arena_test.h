// The fixture of the unit tests that need a pool's memory: a tmpfs of 1 MiB, whose root is of user 5 and
// group
// 6. It needs root. One thread; failures are recorded with GoogleTest.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "alloc/memory_arena.h"
#include "tests/support/disks.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {

inline void on_three_threads(const std::function<void()>& work) {
  std::thread one(work), two(work);
  work();
  one.join();
  two.join();
}

class ArenaTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kSizeBytes = 1 << 20;

  void SetUp() override {
    KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
    auto made =
        MemoryArena::create({.path = path_, .size_bytes = kSizeBytes, .mode = 01770, .uid = 5, .gid = 6});
    ASSERT_TRUE(made) << made.error().message;
    arena_.emplace(std::move(*made));
  }
  UniqueFd open(const std::string& name, int flags = O_RDWR) const {
    UniqueFd fd(::openat(arena_->tree_fd(), name.c_str(), flags | O_CLOEXEC, 0600));
    EXPECT_TRUE(fd) << name;
    return fd;
  }
  UniqueFd make(const std::string& name) const { return open(name, O_CREAT | O_EXCL | O_RDWR); }
  void make_directory(const std::string& name) const {
    ASSERT_EQ(::mkdirat(arena_->tree_fd(), name.c_str(), 0700), 0) << name;
  }

  test::DiskDirectory place_;
  const std::string path_ = place_ / "arena";
  std::optional<MemoryArena> arena_;
};

}  // namespace kvcachefs::test
