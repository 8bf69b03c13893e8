// A removed pool of which clients still have files open, and a pool that is made or removed when the serving
// process dies. No client notices.
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

std::string at_request(const char* stage, uint32_t opcode) {
  return std::string("request ") + stage + " " + std::to_string(opcode);
}

// statx(2) gets the daemon's answer, not one from the kernel's cache.
int error_of_look(const File& file, struct statx* found) {
  return error_of(::statx(file.fd(), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, found));
}

class RemovedPoolTest : public FaultedTierTest {
 protected:
  std::string extra(const std::string& name = "") { return mount().root() + "/extra/" + name; }
  void make_pool() { ASSERT_EQ(error_name(error_of(::mkdir(extra().c_str(), 0755))), "ok"); }
  void remove_pool() { ASSERT_EQ(error_name(error_of(::rmdir(extra().c_str()))), "ok"); }
  File make_nameless(const std::string& content) {
    File file(extra("file"), O_RDWR | O_CREAT);
    EXPECT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
    EXPECT_EQ(error_name(error_of(::unlink(extra("file").c_str()))), "ok");
    return file;
  }
  static void expect_in_use(const File& file, const std::string& content) {
    struct statx found {};
    EXPECT_EQ(error_name(error_of_look(file, &found)), "ok");
    EXPECT_EQ(found.stx_size, content.size());
    EXPECT_EQ(found.stx_nlink, 0u);
    EXPECT_EQ(read_at(file.fd(), 0, 100), content);
    EXPECT_EQ(error_name(error_of(::pwrite(file.fd(), content.data(), content.size(), 0) < 0 ? -1 : 0)),
              "ok");
    EXPECT_EQ(error_name(error_of(::fsync(file.fd()))), "ok");
    EXPECT_EQ(error_name(error_of(::ftruncate(file.fd(), static_cast<off_t>(content.size())))), "ok");
    EXPECT_EQ(error_name(error_of(::close(::dup(file.fd())))), "ok");  // each close of a copy asks the daemon
  }
  static void expect_is_gone(const File& directory) {
    struct statx found {};
    EXPECT_EQ(error_name(error_of_look(directory, &found)), "ok");
    EXPECT_TRUE(S_ISDIR(found.stx_mode));
    EXPECT_EQ(error_name(error_of(::openat(directory.fd(), "new", O_RDWR | O_CREAT, 0644))), "ENOENT");
  }
  // pools_in_memory() waits until only so many pools have memory.
  ::testing::AssertionResult pools_in_memory(size_t count) {
    if (eventually([&] { return mounts_below(mount().runtime_dir()).size() == count; }))
      return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure()
           << mounts_below(mount().runtime_dir()).size() << " pools are in memory";
  }
};

TEST_F(RemovedPoolTest, WhatIsOpenInItGoesOn) {
  start_pool("p:size=32M");
  make_pool();
  const std::string content = "content";
  {
    const File file = make_nameless(content);
    make_directory(extra("inner"));
    const File inner(extra("inner"), O_PATH | O_DIRECTORY);
    ASSERT_EQ(::rmdir(extra("inner").c_str()), 0);
    const File root(extra(), O_PATH | O_DIRECTORY);
    remove_pool();
    for (int round = 0; round < 3 && !HasFailure(); ++round) {
      SCOPED_TRACE(round);
      expect_in_use(file, content);
      expect_is_gone(inner);
      expect_is_gone(root);
      EXPECT_FALSE(exists(extra()));
      replace_server();
    }
    // A new pool has the name now, and its inodes are other ones.
    make_pool();
    EXPECT_EQ(error_name(store(extra("file"), "another")), "ok");
    replace_server();
    expect_in_use(file, content);
    expect_is_gone(root);
    EXPECT_EQ(read_file(extra("file")), "another");
    EXPECT_TRUE(pools_in_memory(3));
  }
  EXPECT_TRUE(pools_in_memory(2));
  ASSERT_EQ(::unlink(extra("file").c_str()), 0);
  remove_pool();
  EXPECT_TRUE(pools_in_memory(1));
}

// No process has the pool's root directory open any more, only a file that was in the pool.
TEST_F(RemovedPoolTest, AFileAloneKeepsIt) {
  start_pool("p:size=32M");
  make_pool();
  File file = make_nameless("content");
  remove_pool();
  for (int round = 0; round < 3; ++round) {
    replace_server();
    expect_in_use(file, "content");
  }
  file.close();
  EXPECT_TRUE(pools_in_memory(1));
}

// A successor gives the memory back, though it cannot know how many lookups the kernel counts for the root.
TEST_F(RemovedPoolTest, ItsMemoryIsGivenBack) {
  start_pool("p:size=32M");
  make_pool();
  replace_server();
  remove_pool();
  EXPECT_TRUE(pools_in_memory(1));
  // The record of the removed pool is not taken for one of the next pool with its name.
  die_at("pool made", [&] { make_pool(); });
  EXPECT_EQ(error_name(store(extra("file"), "content")), "ok");
  replace_server();
  EXPECT_EQ(read_file(extra("file")), "content");
}

// The kernel sends a FORGET only once.
TEST_F(RemovedPoolTest, WhoIsToldThatItIsForgottenDies) {
  start_pool("p:size=32M");
  make_pool();
  File root(extra(), O_PATH | O_DIRECTORY);
  remove_pool();
  EXPECT_TRUE(pools_in_memory(2));
  die_at(at_request("begun", FUSE_FORGET), [&] { root.close(); });
  EXPECT_TRUE(pools_in_memory(1));
}

TEST_F(RemovedPoolTest, ComesAndGoesOnce) {
  start_pool("p:size=32M");
  for (const std::string& place : {at_request("begun", FUSE_MKDIR), std::string("pool made"),
                                   at_request("done", FUSE_MKDIR), at_request("answered", FUSE_MKDIR)}) {
    SCOPED_TRACE(place);
    die_at(place, [&] { make_pool(); });
    EXPECT_EQ(error_name(store(extra("file"), "content")), "ok");
    EXPECT_EQ(error_name(error_of(::unlink(extra("file").c_str()))), "ok");
    remove_pool();
    serve_for_a_moment();
    if (HasFailure()) return;
  }
  for (const std::string& place : {at_request("begun", FUSE_RMDIR), std::string("pool removed"),
                                   at_request("done", FUSE_RMDIR), at_request("answered", FUSE_RMDIR)}) {
    SCOPED_TRACE(place);
    make_pool();
    const File file = make_nameless("content");
    const File root(extra(), O_PATH | O_DIRECTORY);
    die_at(place, [&] { remove_pool(); });
    EXPECT_FALSE(exists(extra()));
    expect_in_use(file, "content");
    expect_is_gone(root);
    serve_for_a_moment();
    if (HasFailure()) return;
  }
  EXPECT_TRUE(pools_in_memory(1));
}

// Another pool may get the memory of a removed one, so what is open of that grows no more.
TEST_F(RemovedPoolTest, ItTakesNoMoreMemory) {
  start_pool("p:size=32M");
  make_pool();
  ASSERT_EQ(error_name(write_once(mount().administrators("size", "extra"), "64M")), "ok");
  const std::string content = pattern(1, 4 * kMiB);
  const File file(extra("file"), O_RDWR | O_CREAT);
  ASSERT_EQ(::write(file.fd(), content.data(), content.size()), static_cast<ssize_t>(content.size()));
  ASSERT_EQ(::unlink(extra("file").c_str()), 0);
  const File root(extra(), O_RDONLY | O_DIRECTORY);
  remove_pool();
  EXPECT_EQ(difference(1, read_at(file.fd(), 0, content.size())), "");
  ssize_t more = 0;
  for (int piece = 1; piece < 8 && more >= 0; ++piece)
    more = ::pwrite(file.fd(), content.data(), content.size(), static_cast<off_t>(piece * content.size()));
  EXPECT_EQ(more, -1);
  EXPECT_EQ(error_name(errno), "ENOSPC");
  EXPECT_EQ(difference(1, read_at(file.fd(), 0, content.size())), "");
}

// What changes has to wait for the catalog, and the catalog of a removed pool takes nothing any more.
TEST_F(RemovedPoolTest, ItsCatalogHasMuchToWrite) {
  start({.size = "256M", .more = "durability=sync"});
  const File file(path("open"), O_RDWR | O_CREAT);
  const std::string large(60'000, 'x');
  const auto name = [&](int number) { return path("e" + std::to_string(number)); };
  constexpr int kFiles = 1500;  // 90 MB of changes
  for (int i = 0; i < kFiles; ++i) ASSERT_EQ(error_name(store(name(i), "x")), "ok");
  arm("failing catalog commit 28");
  for (int i = 0; i < kFiles; ++i)  // there may not be room for all
    (void)::setxattr(name(i).c_str(), "user.x", large.data(), large.size(), 0);
  for (int i = 0; i < kFiles; ++i) (void)::unlink(name(i).c_str());
  EXPECT_EQ(error_name(error_of(::unlink(path("open").c_str()))), "ok");
  EXPECT_EQ(error_name(error_of(::rmdir(mount().path().c_str()))), "ok");
  EXPECT_EQ(error_name(error_of(::fsetxattr(file.fd(), "user.x", "y", 1, 0))), "ok");
  EXPECT_THAT(mount().log(), ::testing::Not(::testing::HasSubstr("another takes over")));
  arm("");
}

}  // namespace
}  // namespace kvcachefs::test
