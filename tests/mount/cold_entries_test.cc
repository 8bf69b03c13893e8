// Entries with their content only on the disk, under every call that changes an entry or its names. Each
// result has to hold in memory, and again after the entry went to the disk and came back.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/faults.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kBytes = kMiB + 4321;

class ColdEntriesTest : public DiskTierTest {
 protected:
  void SetUp() override {
    DiskTierTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    start();
    ASSERT_EQ(error_name(store(name(), content())), "ok");
    make_all_cold();
    ASSERT_EQ(tier_of(name()), "cold");
  }
  std::string name() { return path("e"); }
  static std::string content() { return pattern(5, kBytes); }
  void expect_content(const std::string& where, const std::string& expected) {
    EXPECT_TRUE(read_file(where) == expected) << where << ", now";
    make_all_cold();
    EXPECT_TRUE(read_file(where) == expected) << where << ", from the disk";
    struct ::stat status {};
    ASSERT_EQ(::stat(where.c_str(), &status), 0);
    EXPECT_EQ(status.st_size, static_cast<off_t>(expected.size()));
  }
  int64_t promotes() { return stat("promotes"); }
  struct ::stat status_of(const std::string& where) {
    struct ::stat status {};
    EXPECT_EQ(::stat(where.c_str(), &status), 0) << where;
    return status;
  }
};

TEST_F(ColdEntriesTest, Rename) {
  make_directory(path("d"));
  ASSERT_EQ(::rename(name().c_str(), path("d/f").c_str()), 0);
  EXPECT_FALSE(exists(name()));
  EXPECT_EQ(promotes(), 0);
  expect_content(path("d/f"), content());
}

TEST_F(ColdEntriesTest, RenameOver) {
  ASSERT_EQ(error_name(store(path("f"), "newer")), "ok");
  ASSERT_EQ(::rename(path("f").c_str(), name().c_str()), 0);
  EXPECT_EQ(stat("entries"), 1);
  expect_content(name(), "newer");
  ASSERT_EQ(error_name(store(path("f"), "hot")), "ok");
  ASSERT_EQ(::rename(name().c_str(), path("f").c_str()), 0);
  expect_content(path("f"), "newer");
}

TEST_F(ColdEntriesTest, Exchange) {
  ASSERT_EQ(error_name(store(path("f"), "other")), "ok");
  ASSERT_EQ(::renameat2(AT_FDCWD, name().c_str(), AT_FDCWD, path("f").c_str(), RENAME_EXCHANGE), 0);
  EXPECT_EQ(promotes(), 0);
  expect_content(path("f"), content());
  expect_content(name(), "other");
}

TEST_F(ColdEntriesTest, Link) {
  ASSERT_EQ(::link(name().c_str(), path("second").c_str()), 0);
  EXPECT_EQ(status_of(name()).st_nlink, 2u);
  EXPECT_EQ(promotes(), 0);
  ASSERT_EQ(::unlink(name().c_str()), 0);
  EXPECT_EQ(status_of(path("second")).st_nlink, 1u);
  expect_content(path("second"), content());
}

TEST_F(ColdEntriesTest, Unlink) {
  ASSERT_EQ(::unlink(name().c_str()), 0);
  EXPECT_FALSE(exists(name()));
  EXPECT_EQ(promotes(), 0);
  EXPECT_TRUE(becomes("entries", 0));
  EXPECT_TRUE(becomes("cold_entries", 0));
  EXPECT_TRUE(becomes("spill_used_bytes", 64 << 10));
}

TEST_F(ColdEntriesTest, Attributes) {
  const timespec times[2] = {{1'000'000'001, 5}, {1'000'000'002, 6}};
  ASSERT_EQ(::chmod(name().c_str(), 0640), 0);
  ASSERT_EQ(::chown(name().c_str(), 12, 34), 0);
  ASSERT_EQ(set_xattr(name(), "user.model", "llama"), 0);
  ASSERT_EQ(::utimensat(AT_FDCWD, name().c_str(), times, 0), 0);
  EXPECT_EQ(promotes(), 0);
  const auto expect_attributes = [&] {
    const struct ::stat status = status_of(name());
    EXPECT_EQ(status.st_mode & 07777, 0640u);
    EXPECT_EQ(status.st_uid, 12u);
    EXPECT_EQ(status.st_gid, 34u);
    EXPECT_EQ(status.st_mtim.tv_sec, 1'000'000'002);
    EXPECT_EQ(status.st_mtim.tv_nsec, 6);
    EXPECT_EQ(xattr(name(), "user.model"), "llama");
  };
  expect_attributes();
  EXPECT_EQ(promotes(), 0);
  expect_content(name(), content());
  expect_attributes();  // neither a promotion nor dropping the pages changes the content
}

TEST_F(ColdEntriesTest, TruncateToLess) {
  ASSERT_EQ(::truncate(name().c_str(), 700'001), 0);
  expect_content(name(), content().substr(0, 700'001));
}

TEST_F(ColdEntriesTest, TruncateToMore) {
  ASSERT_EQ(::truncate(name().c_str(), 2 * kBytes), 0);
  expect_content(name(), content() + std::string(kBytes, '\0'));
}

TEST_F(ColdEntriesTest, TruncateToNothing) {
  ASSERT_EQ(::truncate(name().c_str(), 0), 0);
  EXPECT_EQ(promotes(), 0) << "for nothing";
  expect_content(name(), "");
}

TEST_F(ColdEntriesTest, OpenTruncating) {
  {
    const File writer(name(), O_WRONLY | O_TRUNC);
    ASSERT_EQ(::write(writer.fd(), "short", 5), 5);
  }
  expect_content(name(), "short");
}

TEST_F(ColdEntriesTest, Append) {
  {
    const File writer(name(), O_WRONLY | O_APPEND);
    ASSERT_EQ(::write(writer.fd(), "tail", 4), 4);
  }
  expect_content(name(), content() + "tail");
}

TEST_F(ColdEntriesTest, WriteInTheMiddle) {
  {
    const File writer(name(), O_RDWR);
    ASSERT_EQ(::pwrite(writer.fd(), "middle", 6, 500'000), 6);
    EXPECT_EQ(read_at(writer.fd(), 500'000, 6), "middle");
  }
  expect_content(name(), content().replace(500'000, 6, "middle"));
}

TEST_F(ColdEntriesTest, StoreThroughAMapping) {
  {
    const Mapping mapping(File(name(), O_RDWR).fd(), kBytes, PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(mapping.valid());
    EXPECT_TRUE(mapping.text() == content());
    std::copy_n("mapped", 6, mapping.data() + 600'000);
  }
  expect_content(name(), content().replace(600'000, 6, "mapped"));
}

TEST_F(ColdEntriesTest, ReadThroughAMapping) {
  const Mapping mapping(File(name(), O_RDONLY).fd(), kBytes, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  EXPECT_TRUE(mapping.text() == content());
  order(mount(), "100%");
  EXPECT_TRUE(mapping.text() == content()) << "a mapping keeps it in memory";
}

TEST_F(ColdEntriesTest, CopyAndHoles) {
  {
    const File from(name(), O_RDONLY);
    EXPECT_EQ(::lseek(from.fd(), 0, SEEK_DATA), 0);
    EXPECT_EQ(::lseek(from.fd(), 0, SEEK_HOLE), static_cast<off_t>(kBytes));
    const File to(path("copy"), O_WRONLY | O_CREAT);
    off_t at = 0;
    while (::copy_file_range(from.fd(), &at, to.fd(), nullptr, kBytes, 0) > 0) {
    }
  }
  expect_content(path("copy"), content());
  // A file with a hole keeps its content, but perhaps not its hole.
  {
    const File sparse(path("sparse"), O_WRONLY | O_CREAT);
    ASSERT_EQ(::pwrite(sparse.fd(), "end", 3, 3'000'000), 3);
  }
  expect_content(path("sparse"), std::string(3'000'000, '\0') + "end");
}

TEST_F(ColdEntriesTest, Allocate) {
  {
    const File writer(name(), O_WRONLY);
    ASSERT_EQ(::fallocate(writer.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4096, 8192), 0);
  }
  expect_content(name(), content().replace(4096, 8192, std::string(8192, '\0')));
}

TEST_F(ColdEntriesTest, ManySmallOnes) {
  std::vector<std::string> names;
  for (int i = 0; i < 500; ++i) {
    names.push_back(path("s-" + std::to_string(i)));
    ASSERT_EQ(error_name(store(names.back(), pattern(i, 1 + i * 37 % 20'000))), "ok");
  }
  make_all_cold();
  EXPECT_EQ(list(mount().path()).size(), 501u);
  EXPECT_EQ(check_whole(names), 500);
  for (int i = 0; i < 500; i += 2) ASSERT_EQ(::unlink(names[i].c_str()), 0);
  make_all_cold();
  EXPECT_EQ(check_whole(names), 250);
  EXPECT_EQ(stat("entries"), 251);
}

TEST_F(ColdEntriesTest, EmptyOnesAndOnesOfAUnit) {
  const size_t sizes[] = {0, 1, 4095, 4096, 4097, 65'535, 65'536, 65'537, 131'072};
  for (const size_t bytes : sizes)
    ASSERT_EQ(error_name(store(path("n" + std::to_string(bytes)), pattern(bytes, bytes))), "ok");
  make_all_cold();
  for (const size_t bytes : sizes)
    EXPECT_TRUE(read_file(path("n" + std::to_string(bytes))) == pattern(bytes, bytes)) << bytes;
}

TEST_F(ColdEntriesTest, AnEntryOfSixtyMiBInManyPieces) {
  set("size", "128M");
  ASSERT_EQ(error_name(store(path("large"), pattern(9, 60 * kMiB + 5))), "ok");
  make_all_cold();
  EXPECT_EQ(difference(9, read_file(path("large"))), "");
}

// Writers that do not say what they need can claim all of the pool with the room kept for their growth.
TEST_F(ColdEntriesTest, IsOpenedForWritingThoughATakeoverFoundManyWriters) {
  std::vector<File> writers;
  for (int i = 0; i < 40; ++i) writers.emplace_back(path("w" + std::to_string(i)), O_WRONLY | O_CREAT);
  for (const File& writer : writers) ASSERT_EQ(::write(writer.fd(), "x", 1), 1);
  const pid_t before = mount().serving_pid();
  ASSERT_EQ(::kill(before, SIGKILL), 0);
  ASSERT_TRUE(eventually([&] { return mount().serving_pid() > 0 && mount().serving_pid() != before; }));
  // The writers count for a second as growing ones.
  for (int i = 0; i < 20; ++i) {
    for (const File& writer : writers) ASSERT_EQ(::write(writer.fd(), "x", 1), 1);
    const File file(::open(name().c_str(), O_RDWR));
    EXPECT_GE(file.fd(), 0) << error_name(errno) << ", open " << i;
    set("evict", "100%");
  }
}

class ArrivingEntriesTest : public FaultedTierTest {
 protected:
  // hold_promotions() pauses the daemon after a promotion has ended and before its waiter is told.
  void hold_promotions() { arm("pause promotion ended"); }
  bool is_held() { return exists(fault_file() + ".paused"); }
  void go_on() { EXPECT_EQ(::unlink((fault_file() + ".paused").c_str()), 0); }
};

// Without this, orders to evict that come all the time would make an open promote its entry again and again,
// until it fails with ENOSPC in an empty pool.
TEST_F(ArrivingEntriesTest, OneThatAnOpenWaitsForStaysUntilItIsOpen) {
  start();
  ASSERT_EQ(error_name(store(path("e"), pattern(5, kBytes))), "ok");
  make_all_cold();
  hold_promotions();
  std::string read;
  std::thread reader([&] { read = read_file(path("e")); });
  ASSERT_TRUE(eventually([&] { return is_held(); }));
  set("evict", "100%");
  EXPECT_EQ(tier_of(path("e")), "clean");
  go_on();
  reader.join();
  EXPECT_TRUE(read == pattern(5, kBytes));
  EXPECT_EQ(stat("promotes"), 1);
  make_all_cold();
}

// Half of the pool is being promoted when a writer needs that memory; it can be evicted as soon as it has
// come.
TEST_F(ArrivingEntriesTest, AWriterWaitsForWhatIsOnItsWay) {
  start({.size = "16M", .more = "durability=none"});
  ASSERT_EQ(error_name(store(path("half"), pattern(1, 8 * kMiB))), "ok");
  make_all_cold();
  // The memory left does not suffice for a passthrough writer.
  const File open(path("open"), O_WRONLY | O_CREAT);
  ASSERT_EQ(::write(open.fd(), pattern(2, kMiB).data(), kMiB), static_cast<ssize_t>(kMiB));
  hold_promotions();
  set("prefetch", "half\n");
  ASSERT_TRUE(eventually([&] { return is_held(); }));
  std::atomic<int> error{-1};
  std::atomic<size_t> done{0};
  std::thread writer([&] {
    const File file(path("new"), O_WRONLY | O_CREAT);
    const std::string content = pattern(3, 8 * kMiB);
    ssize_t count = 1;
    for (; done < content.size() && count > 0; done += static_cast<size_t>(std::max<ssize_t>(count, 0)))
      count = ::write(file.fd(), content.data() + done, std::min<size_t>(64 << 10, content.size() - done));
    error = count > 0 ? 0 : errno;
  });
  // The test goes on when the writer waits or was refused.
  size_t last = 0;
  EXPECT_TRUE(eventually([&] {
    ::usleep(100'000);
    return error >= 0 || (std::exchange(last, done.load()) == done && done > 0);
  }));
  go_on();
  writer.join();
  EXPECT_EQ(error_name(error), "ok");
}

}  // namespace
}  // namespace kvcachefs::test
