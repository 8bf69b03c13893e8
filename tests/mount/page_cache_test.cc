// In daemon I/O some opens go past the kernel's page cache, and a client must not notice that. The tests run
// as on this kernel, and as on one before Linux 6.6, which cannot map a file that is open past the cache.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kPage = 4096;

class PageCacheTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    KVCACHEFS_NEED_DAEMON();
    if (GetParam()) {
      write_file(faults_, "failing map what bypasses the page cache 95\n");
      ::setenv("KVCACHEFS_FAULT_FILE", faults_.c_str(), 1);
    }
    mount_ = std::make_unique<Mount>(MountOptions{.pools = {"p:size=256M"}});
  }
  void TearDown() override {
    ::unsetenv("KVCACHEFS_FAULT_FILE");
    (void)::unlink(faults_.c_str());
    if (mount_ == nullptr) return;
    if (HasFailure()) report_daemon_log(*mount_);
    mount_->stop();
  }
  std::string path(const std::string& name) const { return mount_->path() + "/" + name; }

  const std::string faults_ = "/tmp/kv-test-page-cache-" + std::to_string(::getpid());
  std::unique_ptr<Mount> mount_;
};
INSTANTIATE_TEST_SUITE_P(Kernel, PageCacheTest, ::testing::Bool(),
                         [](const auto& kernel) { return kernel.param ? "Before66" : "AsHere"; });

size_t cached_pages(const std::string& name, size_t bytes) {
  const File file(name, O_RDONLY);
  const Mapping mapping(file.fd(), bytes, PROT_READ, MAP_SHARED);
  EXPECT_TRUE(mapping.valid()) << "a shared mapping for reading";
  std::vector<unsigned char> pages(bytes / kPage);
  EXPECT_EQ(::mincore(mapping.data(), bytes, pages.data()), 0);
  return static_cast<size_t>(
      std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; }));
}

TEST_P(PageCacheTest, AStoreIsNotInMemoryTwice) {
  if (mode() != Mode::kDaemonIo) return;  // passthrough does not use the page cache of the FUSE file
  ASSERT_EQ(store(path("entry"), pattern(1, 8 * kMiB)), 0);
  EXPECT_EQ(cached_pages(path("entry"), 8 * kMiB), 0u);
  EXPECT_EQ(difference(1, read_file(path("entry"))), "");
}

TEST_P(PageCacheTest, AllWaysToAnEntryShowTheSame) {
  ASSERT_EQ(store(path("entry"), pattern(1, 3 * kMiB + 5)), 0);
  const File reader(path("entry"), O_RDONLY);
  const Mapping mapping(reader.fd(), 3 * kMiB, PROT_READ, MAP_SHARED);
  ASSERT_TRUE(mapping.valid());
  EXPECT_EQ(difference(1, mapping.text()), "");
  for (const int flags : {O_WRONLY, O_RDWR, O_WRONLY | O_DIRECT}) {
    const File writer(path("entry"), flags);
    const std::string page = pattern(static_cast<uint64_t>(flags) + 7, kPage);
    alignas(kPage) static char aligned[kPage];
    std::ranges::copy(page, aligned);
    for (const off_t at : {off_t{0}, static_cast<off_t>(2 * kMiB)}) {
      ASSERT_EQ(::pwrite(writer.fd(), aligned, kPage, at), static_cast<ssize_t>(kPage));
      EXPECT_EQ(read_at(reader.fd(), at, kPage), page) << "read after a write, flags " << flags;
      EXPECT_EQ(std::string(mapping.text().substr(static_cast<size_t>(at), kPage)), page)
          << "mapped, flags " << flags;
    }
  }
  const std::string before = read_file(path("entry"));
  {
    const File both(path("entry"), O_RDWR);
    const Mapping writing(both.fd(), kPage, PROT_READ | PROT_WRITE, MAP_SHARED);
    ASSERT_TRUE(writing.valid());
    writing.data()[1] = static_cast<char>(before[1] + 1);
    ASSERT_EQ(::msync(writing.data(), kPage, MS_SYNC), 0);
    EXPECT_EQ(read_at(reader.fd(), 1, 1)[0], static_cast<char>(before[1] + 1));
  }
  // While the entry is stored for the first time, another client reads it and writes it too.
  const File first(path("new"), O_CREAT | O_EXCL | O_WRONLY);
  ASSERT_EQ(::pwrite(first.fd(), "one", 3, 0), 3);
  const File early(path("new"), O_RDONLY);
  EXPECT_EQ(read_at(early.fd(), 0, 9), "one");
  const File second(path("new"), O_WRONLY);
  ASSERT_EQ(::pwrite(second.fd(), "two", 3, 0), 3);
  EXPECT_EQ(read_at(early.fd(), 0, 9), "two");
  ASSERT_EQ(::pwrite(first.fd(), "three", 5, 0), 5);
  EXPECT_EQ(read_at(early.fd(), 0, 9), "three");
  const File appender(path("new"), O_WRONLY | O_APPEND);
  ASSERT_EQ(::write(appender.fd(), "four", 4), 4);
  EXPECT_EQ(read_file(path("new")), "threefour");
}

TEST_P(PageCacheTest, AReaderMeetsNoErrorWhileTheFileIsCut) {
  const std::string content = pattern(1, 4 * kMiB);
  ASSERT_EQ(store(path("entry"), content), 0);
  std::atomic<bool> stop{false};
  std::thread cutter([&] {
    const File file(path("entry"), O_WRONLY);
    for (int round = 0; round < 150; ++round) {
      EXPECT_EQ(::ftruncate(file.fd(), 0), 0);
      EXPECT_EQ(::pwrite(file.fd(), content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
      EXPECT_EQ(::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, kMiB, kMiB), 0);
    }
    stop = true;
  });
  const File reader(path("entry"), O_RDONLY | O_DIRECT);
  const Mapping memory(-1, 4 * kMiB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
  while (!stop) {
    const ssize_t got = ::pread(reader.fd(), memory.data(), memory.bytes(), 0);
    EXPECT_GE(got, 0) << error_name(error_of(got));
    if (got < 0) break;
    // Each byte read is zero or has the value that was written there.
    for (size_t at = 0; at < static_cast<size_t>(got); at += kPage)
      EXPECT_TRUE(memory.data()[at] == 0 || memory.data()[at] == content[at]) << at;
  }
  cutter.join();
}

TEST_P(PageCacheTest, ReadingHolesTakesNoMemory) {
  const File file(path("sparse"), O_CREAT | O_RDWR);
  ASSERT_EQ(::ftruncate(file.fd(), 64 * kMiB), 0);
  ASSERT_EQ(::pwrite(file.fd(), "x", 1, 32 * kMiB), 1);
  const auto used = [this] { return mount_->stat_value("used_bytes"); };
  const int64_t before = used();
  const std::string content = read_file(path("sparse"));
  EXPECT_EQ(content.size(), 64 * kMiB);
  EXPECT_EQ(content.find_first_not_of('\0'), 32 * kMiB);
  EXPECT_EQ(used(), before);
}

TEST_P(PageCacheTest, AUsersWriteClearsSetUserId) {
  write_file(path("program"), "x", 0755);
  ASSERT_EQ(::chown(path("program").c_str(), 65534, 65534), 0);
  const File file(path("program"), O_WRONLY);
  ASSERT_EQ(::chmod(path("program").c_str(), 04755), 0);
  ASSERT_EQ(as_user(65534, 65534, [&] { return ::pwrite(file.fd(), "yy", 2, 0) == 2 ? 0 : 1; }), 0);
  struct ::stat status {};
  ASSERT_EQ(::stat(path("program").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, mode() == Mode::kDaemonIo ? 0755u : 04755u);
}

}  // namespace
}  // namespace kvcachefs::test
