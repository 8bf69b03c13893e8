// A file system on a loop device that can be frozen (FIFREEZE): a process that writes then waits in the
// kernel until thaw(). No signal ends such a wait, nor that of the clients of a daemon that waits, so a
// process of its own thaws the disk when the test ends in any way, or after kLongestFrost. One thread. Only
// if LoopDevice::available(); failures are recorded with GoogleTest.
#pragma once

#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "base/unique_fd.h"
#include "gtest/gtest.h"
#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/program.h"

namespace kvcachefs::test {

class FreezableDisk {
 public:
  FreezableDisk(const DiskDirectory& disk, uint64_t size_bytes)
      : device_(disk.make_file("image", size_bytes)), path_(disk / "frozen") {
    make_directory(path_);
    EXPECT_EQ(run({"/usr/sbin/mkfs.ext4", "-q", "-O", "^has_journal", device_.path()}).exit_code, 0);
    EXPECT_EQ(::mount(device_.path().c_str(), path_.c_str(), "ext4", MS_NODEV, nullptr), 0);
  }
  ~FreezableDisk() {
    if (ends_) thaw();
    EXPECT_EQ(::umount(path_.c_str()), 0);
  }
  FreezableDisk(const FreezableDisk&) = delete;
  FreezableDisk& operator=(const FreezableDisk&) = delete;
  const std::string& path() const { return path_; }
  void freeze() {
    const UniqueFd root(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd thaws_at_end(ends[0]);
    ends_ = UniqueFd(ends[1]);
    thawing_ = ::fork();
    if (thawing_ == 0) {
      ends_.reset();
      pollfd end{thaws_at_end.get(), POLLHUP, 0};
      const bool in_time = ::poll(&end, 1, static_cast<int>(kLongestFrost.count())) == 1;
      ::_exit(::ioctl(root.get(), FITHAW, 0) == 0 && in_time ? 0 : 1);
    }
    EXPECT_EQ(::ioctl(root.get(), FIFREEZE, 0), 0);
  }
  void thaw() {
    ends_.reset();
    int status = -1;
    EXPECT_EQ(::waitpid(thawing_, &status, 0), thawing_);
    EXPECT_EQ(status, 0) << "the test took longer than it may";
  }

 private:
  static constexpr std::chrono::milliseconds kLongestFrost{90'000};

  const LoopDevice device_;
  const std::string path_;
  UniqueFd ends_;  // a copy that another process has by mistake only makes the frost last its longest
  pid_t thawing_ = -1;
};

}  // namespace kvcachefs::test
