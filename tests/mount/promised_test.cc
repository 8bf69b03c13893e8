// A content that an fsync has promised is kept, whatever the pool does with other entries; and an open that
// waits does not make other requests wait.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>
#include <vector>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kEntryBytes = 300'000;

TEST(PromisedTest, WhatAdmissionWouldRefuseIsNotDiscardedAfterAnFsync) {
  KVCACHEFS_NEED_DAEMON();
  const DiskDirectory disk;
  MountOptions options;
  options.pools = {"p:size=64M,durability=none,admission=second_access,spill_size=64M,spill=" +
                   (disk / "spill")};
  Mount mount(options);
  const std::string promised = mount.path() + "/promised";
  const std::string other = mount.path() + "/other";
  {
    const File file(promised, O_CREAT | O_WRONLY | O_CLOEXEC);
    const std::string content = pattern(1, kEntryBytes);
    ASSERT_EQ(::write(file.fd(), content.data(), content.size()), ssize_t(content.size()));
    ASSERT_EQ(::fsync(file.fd()), 0);
  }
  ASSERT_EQ(store(other, pattern(2, kEntryBytes)), 0);
  ASSERT_TRUE(eventually([&] {
    EXPECT_EQ(write_once(mount.control("evict"), "100%"), 0);
    return mount.stat_value("dirty_entries") == 0 && mount.stat_value("clean_entries") == 0;
  }));
  EXPECT_FALSE(exists(other));
  EXPECT_EQ(mount.stat_value("cold_entries"), 1);
  std::string content;
  ASSERT_EQ(load(promised, &content), 0);
  EXPECT_EQ(difference(1, content), "");
  if (HasFailure()) report_daemon_log(mount);
  mount.stop();
}

// While an open waits for memory that other files hold, the only serving thread goes on.
TEST(PromisedTest, AnOpenThatWaitsHoldsNoThread) {
  KVCACHEFS_NEED_DAEMON();
  const DiskDirectory disk;
  MountOptions options;
  options.pools = {"p:size=16M,prefetch=off,spill_size=128M,spill=" + (disk / "spill")};
  options.arguments = {"-o", "threads=1"};
  Mount mount(options);
  const auto names = fill(mount.path(), "e", 40);
  ASSERT_TRUE(eventually([&] { return mount.stat_value("dirty_entries") == 0; }));
  ASSERT_TRUE(settled(mount));
  order(mount, "100%");
  std::vector<File> holders;  // they hold all memory
  for (int i = 0; i < 16; ++i) {
    holders.emplace_back(names[i], O_RDONLY);
    EXPECT_EQ(read_at(holders.back().fd(), 0, 4096), pattern(i, 4096));
  }
  // The open is told after half a second that there is no memory. A machine that stands still for that long
  // gets another try.
  bool served_meanwhile = false;
  for (int i = 20; i < 28 && !served_meanwhile; ++i) {
    std::atomic<pid_t> thread{0};
    auto opened = std::async(std::launch::async, [&] {
      thread = ::gettid();
      const int fd = ::open(names[i].c_str(), O_RDWR | O_CLOEXEC);
      const int error = error_of(fd);
      if (fd >= 0) ::close(fd);
      return error;
    });
    const std::string in_open = std::to_string(SYS_openat) + " ";
    EXPECT_TRUE(eventually([&] {
      return opened.wait_for(std::chrono::seconds(0)) == std::future_status::ready ||
             (thread != 0 &&
              read_file("/proc/self/task/" + std::to_string(thread) + "/syscall").starts_with(in_open));
    }));
    EXPECT_FALSE(exists(mount.path() + "/nothing-" + std::to_string(i)));
    served_meanwhile = opened.wait_for(std::chrono::seconds(0)) != std::future_status::ready;
    EXPECT_EQ(error_name(opened.get()), "ENOSPC");
  }
  EXPECT_TRUE(served_meanwhile);
  if (::testing::Test::HasFailure()) report_daemon_log(mount);
  holders.clear();
  mount.stop();
}

}  // namespace
}  // namespace kvcachefs::test
