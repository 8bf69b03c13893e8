// The evictor's rounds over a pool whose files the test makes and writes itself, as clients with passthrough
// do.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "tests/support/disks.h"
#include "tests/support/no_kernel.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

class PoolEvictTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root for its tmpfs";
    PoolOptions options;
    options.name = "p";
    options.size_bytes = 64 * kMiB;
    auto made = Pool::create(1, options,
                             {.arena_path = place_ / "arena",
                              .topology = &topology_,
                              .backing_store = &backing_,
                              .listener = &listener_,
                              .evictor = &evictor_,
                              .cores = 1});
    ASSERT_TRUE(made) << made.error().message;
    pool_ = std::move(*made);
  }

  struct Made {
    UniqueFd fd;
    uint64_t ino = 0;
  };
  // A file that a client has made and still has open; `passes`: its writes need not come to the daemon.
  Made make(const std::string& name, bool& passes) {
    const int root = pool_->inodes().directory(pool_->root_ino())->fd;
    UniqueFd fd(::openat(root, name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0644));
    EXPECT_TRUE(fd) << name;
    const auto handle = sys::handle_of(fd.get());
    EXPECT_TRUE(handle);
    const auto opened = pool_->open_files().created({.fd = fd.get(),
                                                     .ino = handle->ino,
                                                     .generation = handle->generation,
                                                     .open = true,
                                                     .writer = true,
                                                     .named = true,
                                                     .name = name,
                                                     .node = 0});
    EXPECT_TRUE(opened);
    passes = opened && !opened->through_daemon;
    return {std::move(fd), handle->ino};
  }
  // The descriptor stays open: the entry counts as closed, and its file cannot be leased.
  UniqueFd store_and_hold(const std::string& name, uint64_t bytes) {
    bool passes = false;
    Made made = make(name, passes);
    EXPECT_EQ(::fallocate(made.fd.get(), 0, 0, static_cast<off_t>(bytes)), 0) << name;
    pool_->open_files().end_open(made.ino, {.writer = true});
    return std::move(made.fd);
  }

  test::DiskDirectory place_;
  NumaTopology topology_{{{.id = 0}}, [](int) { return uint64_t{1} << 40; }};
  test::NoBacking backing_;
  test::NoListener listener_;
  Wakeup evictor_;
  std::shared_ptr<Pool> pool_;
};

// The first victim is not let go of yet, and all others were closed a moment ago and not renamed. A writer
// that waits can be told to wait for that; one with passthrough would meet the end of the memory.
TEST_F(PoolEvictTest, AWriterBeyondItsPromiseHasRoomAfterEachRound) {
  const UniqueFd held = store_and_hold("held", kMiB);
  for (int i = 0; i < 29; ++i) (void)store_and_hold("small-" + std::to_string(i), kMiB);
  bool passes = false;
  const Made large = make("large", passes);
  ASSERT_TRUE(passes);
  uint64_t end = 33 * kMiB;  // it was promised 32
  for (int round = 0; round < 4; ++round, end += 6 * kMiB) {
    ASSERT_EQ(::fallocate(large.fd.get(), 0, 0, static_cast<off_t>(end)), 0) << "round " << round;
    (void)pool_->evictor().tidy();
    EXPECT_FALSE(pool_->capacity().writer_outruns()) << "round " << round;
  }
}

}  // namespace
}  // namespace kvcachefs
