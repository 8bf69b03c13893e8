// Calls that promise durability: after the answer both processes are killed and the memory is gone, perhaps
// after a takeover, and the content that comes back from the disk is complete.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

class DurableWritesTest : public FaultedTierTest {
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

// With passthrough the kernel tells of the file's close while a mapping still writes it.
TEST_F(DurableWritesTest, OfAMappingThatOutlivesItsFileByTheRoot) {
  start_lazy();
  const std::string content = pattern(3, 200'000);
  {
    File file(path("e"), O_CREAT | O_RDWR);
    ASSERT_EQ(::ftruncate(file.fd(), static_cast<off_t>(content.size())), 0);
    const Mapping mapping(file.fd(), content.size(), PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    std::copy(content.begin(), content.end(), mapping.data());
    file.close();
    ASSERT_EQ(error_name(sync_directory()), "ok");
    lose_memory();
  }
  if (mode() != Mode::kDaemonIo) {
    EXPECT_EQ(difference(3, read_file(path("e"))), "");
  }
}

// The promise was made before a takeover, and the catalog's older content stays true until something replaces
// it.
class DurableTakeoverTest : public DurableWritesTest {
 protected:
  static void write(const File& file, uint64_t seed) {
    const std::string content = pattern(seed, kMiB);
    ASSERT_EQ(::pwrite(file.fd(), content.data(), content.size(), 0), static_cast<ssize_t>(kMiB));
  }
  void store_synced(const std::string& name, uint64_t seed) {
    const File file(path(name), O_RDWR | O_CREAT);
    write(file, seed);
    ASSERT_EQ(::fsync(file.fd()), 0);
  }
};

TEST_F(DurableTakeoverTest, WhatIsOpenForWriting) {
  start_lazy();
  store_synced("opened", 1);
  store_synced("written", 2);
  store_synced("unlinked", 3);
  store_synced("renamed", 4);
  store_synced("linked", 5);
  {
    std::vector<File> files;
    for (const char* name : {"opened", "written", "unlinked", "renamed", "linked"})
      files.emplace_back(path(name), O_RDWR);
    files.emplace_back(path("new"), O_RDWR | O_CREAT);
    write(files.back(), 6);
    ASSERT_EQ(::fsync(files.back().fd()), 0);
    write(files[1], 7);
    replace_server();
    ASSERT_EQ(::unlink(path("unlinked").c_str()), 0);
    ASSERT_EQ(::rename(path("renamed").c_str(), path("renamed-2").c_str()), 0);
    ASSERT_EQ(::link(path("linked").c_str(), path("linked-2").c_str()), 0);
    EXPECT_EQ(sync_directory(), 0);
    lose_memory();
  }
  EXPECT_EQ(difference(1, read_file(path("opened"))), "");
  EXPECT_EQ(difference(2, read_file(path("written"))), "");
  EXPECT_EQ(difference(6, read_file(path("new"))), "");
  EXPECT_FALSE(exists(path("unlinked")));
  EXPECT_FALSE(exists(path("renamed")));
  EXPECT_EQ(difference(4, read_file(path("renamed-2"))), "");
  EXPECT_EQ(difference(5, read_file(path("linked"))), "");
  EXPECT_EQ(difference(5, read_file(path("linked-2"))), "");
  EXPECT_EQ(list(mount().path()).size(), 6u);
}

TEST_F(DurableTakeoverTest, WhatANewerOneHasReplaced) {
  start_lazy();
  store_synced("e", 1);
  store_synced("f", 2);
  ASSERT_EQ(error_name(store(path("e"), pattern(3, kMiB))), "ok");
  ASSERT_EQ(error_name(store(path("f"), pattern(4, kMiB))), "ok");
  replace_server();
  {
    const File newer(path("f"), O_RDWR);
    ASSERT_EQ(::fsync(newer.fd()), 0);
  }
  replace_server();
  lose_memory();
  EXPECT_EQ(difference(1, read_file(path("e"))), "") << "the older one is whole until the newer is durable";
  EXPECT_EQ(difference(4, read_file(path("f"))), "");
  const int64_t used = stat("spill_used_bytes");
  ASSERT_EQ(error_name(store(path("e"), pattern(5, kMiB))), "ok");
  replace_server();
  const File newer(path("e"), O_RDWR);
  ASSERT_EQ(::fsync(newer.fd()), 0);
  EXPECT_TRUE(becomes("spill_used_bytes", used)) << "the older one's space is free again";
}

// A file that got a name after it was cut to nothing never shows its older content under that name.
TEST_F(DurableTakeoverTest, WhatWasCutToNothing) {
  start_lazy();
  for (const char* name : {"kept", "renamed", "rewritten"}) store_synced(name, 1);
  const File rewritten(path("rewritten"), O_RDWR | O_TRUNC);
  write(rewritten, 2);
  for (const char* name : {"kept", "renamed"}) ASSERT_EQ(::truncate(path(name).c_str(), 0), 0);
  replace_server();
  ASSERT_EQ(::rename(path("renamed").c_str(), path("other").c_str()), 0);
  EXPECT_EQ(sync_directory(), 0);
  ASSERT_EQ(::rename(path("rewritten").c_str(), path("named").c_str()), 0);
  replace_server();
  ASSERT_EQ(::fsync(rewritten.fd()), 0);
  lose_memory();
  EXPECT_FALSE(exists(path("renamed")));
  EXPECT_FALSE(exists(path("rewritten")));
  EXPECT_EQ(difference(2, read_file(path("named"))), "");
  EXPECT_NE(difference(1, read_file(path("other")) + "?"), "");
  const std::string kept = read_file(path("kept"));
  EXPECT_TRUE(kept.empty() || difference(1, kept).empty());
}

// Only the disk tells which version it has.
TEST_F(DurableTakeoverTest, WhatWasCutWhileTheDiskWasAway) {
  start_lazy();
  store_synced("named", 1);
  store_synced("cut", 2);
  for (int writers = 0; writers < 3; ++writers) write(File(path("cut"), O_RDWR), 4);
  const File cut(path("cut"), O_RDWR);
  ASSERT_EQ(::fsync(cut.fd()), 0);
  const std::string hidden = spill_file() + ".away";
  ASSERT_EQ(::rename(spill_file().c_str(), hidden.c_str()), 0);
  replace_server();
  ASSERT_EQ(stat("disk_away"), 1);
  ASSERT_EQ(::ftruncate(cut.fd(), 0), 0);
  write(cut, 3);
  ASSERT_EQ(::rename(path("cut").c_str(), path("named").c_str()), 0);
  ASSERT_EQ(::rename(hidden.c_str(), spill_file().c_str()), 0);
  ASSERT_TRUE(becomes("disk_away", 0));
  EXPECT_EQ(difference(3, read_file(path("named"))), "");
  lose_memory();
  EXPECT_EQ(difference(1, read_file(path("named"))), "");
}

TEST_F(DurableTakeoverTest, ACutOfAColdOne) {
  start_lazy();
  for (const char* place : {"cold one cut", "marked dirty"}) {
    SCOPED_TRACE(place);
    store_synced("e", 1);
    make_all_cold();
    die_at(place, [&] { EXPECT_EQ(::truncate(path("e").c_str(), 0), 0); });
    EXPECT_EQ(read_file(path("e")), "");
    lose_memory();
    const std::string left = read_file(path("e"));
    EXPECT_TRUE(left.empty() || difference(1, left).empty());
  }
}

TEST_F(DurableTakeoverTest, WhatHadNoName) {
  start_lazy();
  for (const bool named_before : {false, true}) {
    SCOPED_TRACE(named_before);
    const std::string name = named_before ? "named before" : "named after";
    const File nameless(::open(mount().path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0644));
    write(nameless, 1);
    ASSERT_EQ(::fsync(nameless.fd()), 0);
    if (!named_before) replace_server();
    ASSERT_EQ(::linkat(AT_FDCWD, ("/proc/self/fd/" + std::to_string(nameless.fd())).c_str(), AT_FDCWD,
                       path(name).c_str(), AT_SYMLINK_FOLLOW),
              0);
    if (named_before) replace_server();
    EXPECT_EQ(sync_directory(), 0);
    lose_memory();
    EXPECT_EQ(difference(1, read_file(path(name))), "");
  }
}

}  // namespace
}  // namespace kvcachefs::test
