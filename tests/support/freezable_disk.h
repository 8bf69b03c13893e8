// A file system on a loop device that can be frozen (FIFREEZE): a process that writes then waits in the
// kernel until thaw(). One thread. Only if LoopDevice::available(); failures are recorded with GoogleTest.
#pragma once

#include <sys/mount.h>

#include <cstdint>
#include <string>

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
    if (frozen_) thaw();
    EXPECT_EQ(::umount(path_.c_str()), 0);
  }
  FreezableDisk(const FreezableDisk&) = delete;
  FreezableDisk& operator=(const FreezableDisk&) = delete;
  const std::string& path() const { return path_; }
  void freeze() {
    frozen_ = run({"/sbin/fsfreeze", "-f", path_}).exit_code == 0;
    EXPECT_TRUE(frozen_);
  }
  void thaw() {
    frozen_ = false;
    EXPECT_EQ(run({"/sbin/fsfreeze", "-u", path_}).exit_code, 0);
  }

 private:
  const LoopDevice device_;
  const std::string path_;
  bool frozen_ = false;
};

}  // namespace kvcachefs::test
