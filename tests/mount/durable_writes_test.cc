// Calls that promise durability: after the answer both processes are killed and the memory is gone, and the
// content that comes back from the disk is complete.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

class DurableWritesTest : public DiskTierTest {
 protected:
  // A pool of which no entry is spilled in the background.
  void start_lazy() { start({.size = "64M", .more = "durability=none"}); }
  void lose_memory() {
    kill();
    start_lazy();
  }
};

TEST_F(DurableWritesTest, OfASynchronousDescriptor) {
  int number = 0;
  for (const int flags : {O_SYNC, O_DSYNC, O_SYNC | O_APPEND}) {
    SCOPED_TRACE(flags);
    start_lazy();
    const std::string name = "e" + std::to_string(number++);
    const std::string content = pattern(7, 300'001);
    {
      const File file(path(name), O_CREAT | O_RDWR | flags);
      const File reader(path(name), O_RDONLY);
      const File plain(path(name), O_WRONLY);
      for (size_t at = 0; at < content.size(); at += 100'000) {
        const std::string piece = content.substr(at, 100'000);
        ASSERT_EQ(::write(file.fd(), piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
        EXPECT_EQ(read_at(reader.fd(), static_cast<off_t>(at), piece.size()), piece);
        EXPECT_EQ(read_at(file.fd(), static_cast<off_t>(at), piece.size()), piece);
        struct ::stat status {};
        ASSERT_EQ(::fstat(reader.fd(), &status), 0);
        EXPECT_EQ(status.st_size, static_cast<off_t>(at + piece.size()));
      }
      {
        const Mapping mapping(file.fd(), content.size(), PROT_READ, MAP_SHARED);
        ASSERT_TRUE(mapping.valid());
        EXPECT_TRUE(mapping.text() == content);
      }
      lose_memory();
    }
    EXPECT_EQ(difference(7, read_file(path(name))), "");
    // The same for an entry that exists and is cold.
    {
      const File file(path(name), O_WRONLY | (flags & ~O_APPEND));
      ASSERT_EQ(::pwrite(file.fd(), "other", 5, 1000), 5);
      lose_memory();
    }
    EXPECT_EQ(read_file(path(name)).substr(1000, 5), "other");
    stop();
  }
}

TEST_F(DurableWritesTest, ACloseAfterTheOrderForIt) {
  start_lazy();
  const File before(path("before"), O_WRONLY | O_CREAT);
  ASSERT_EQ(::write(before.fd(), "content", 7), 7);
  ASSERT_EQ(write_once(mount().control("durability"), "sync"), 0);
  File after(path("after"), O_WRONLY | O_CREAT);
  ASSERT_EQ(::write(after.fd(), "content", 7), 7);
  after.close();
  // Its writer could be writing, so that nothing can be written down for a successor.
  const char* const outcome = mode() == Mode::kPassthrough ? "EIO" : "ok";
  EXPECT_EQ(error_name(error_of(::close(::dup(before.fd())))), outcome);
  EXPECT_EQ(::fsync(before.fd()), 0);
  EXPECT_EQ(error_name(error_of(::close(::dup(before.fd())))), "ok");
  lose_memory();
  EXPECT_EQ(read_file(path("before")), "content");
  EXPECT_EQ(read_file(path("after")), "content");
}

TEST_F(DurableWritesTest, ACloseOfWhatWasTruncatedBeforeADeath) {
  start({.size = "64M", .more = "durability=sync"});
  File file(path("file"), O_WRONLY | O_CREAT);
  ASSERT_EQ(::ftruncate(file.fd(), 0), 0);
  ASSERT_EQ(::kill(mount().serving_pid(), SIGKILL), 0);
  ASSERT_EQ(::write(file.fd(), "content", 7), 7);
  EXPECT_EQ(error_name(error_of(::close(::dup(file.fd())))), "ok");
  lose_memory();
  EXPECT_EQ(read_file(path("file")), "content");
}

TEST_F(DurableWritesTest, OfOneCallInDaemonIo) {
  if (mode() != Mode::kDaemonIo) GTEST_SKIP() << "with passthrough it is the kernel's own, to memory";
  start_lazy();
  {
    const File file(path("e"), O_CREAT | O_RDWR);
    std::string content = "content";
    const iovec piece{content.data(), content.size()};
    ASSERT_EQ(::pwritev2(file.fd(), &piece, 1, 0, RWF_DSYNC), 7);
    lose_memory();
  }
  EXPECT_EQ(read_file(path("e")), "content");
}

TEST_F(DurableWritesTest, OfAMappingByFsync) {
  start_lazy();
  const std::string content = pattern(3, 200'000);
  {
    const File file(path("e"), O_CREAT | O_RDWR);
    ASSERT_EQ(::ftruncate(file.fd(), static_cast<off_t>(content.size())), 0);
    const Mapping mapping(file.fd(), content.size(), PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    std::copy(content.begin(), content.end(), mapping.data());
    ASSERT_EQ(::msync(mapping.data(), content.size(), MS_SYNC), 0);
    if (mode() != Mode::kDaemonIo) {
      ASSERT_EQ(::fsync(file.fd()), 0);
    }
    lose_memory();
  }
  EXPECT_EQ(difference(3, read_file(path("e"))), "");
}

TEST_F(DurableWritesTest, OfAllOfAPoolByItsRoot) {
  start_lazy();
  make_directory(path("d"));
  make_directory(path("d/d"));
  make_directory(path("empty"));
  int seed = 0;
  for (const char* name : {"a", "d/b", "d/d/c"})
    ASSERT_EQ(error_name(store(path(name), pattern(++seed, 50'000))), "ok");
  ASSERT_EQ(error_name(sync_directory()), "ok");
  lose_memory();
  seed = 0;
  for (const char* name : {"a", "d/b", "d/d/c"})
    EXPECT_EQ(difference(++seed, read_file(path(name))), "") << name;
  EXPECT_TRUE(exists(path("empty")));
}

}  // namespace
}  // namespace kvcachefs::test
