// Memory of a file that no process wrote: found and given back, with what was written untouched.
#include "alloc/unwritten.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

#include "base/unique_fd.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::unwritten_test {

constexpr uint64_t kMiB = 1 << 20;

class UnwrittenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root"));
    tmpfs_.emplace("size=64M,huge=never");
    fd_ = UniqueFd(::open((tmpfs_->path() + "/f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd_);
  }
  int fd() const { return fd_.get(); }
  void write(uint64_t offset, uint64_t bytes) {
    const std::string content = test::pattern(offset, bytes);
    ASSERT_EQ(::pwrite(fd(), content.data(), bytes, static_cast<off_t>(offset)), static_cast<ssize_t>(bytes));
  }
  uint64_t allocated_bytes() const {
    struct stat attributes {};
    EXPECT_EQ(::fstat(fd(), &attributes), 0);
    return static_cast<uint64_t>(attributes.st_blocks) * 512;
  }
  void reserve(uint64_t bytes) {
    ASSERT_EQ(::fallocate(fd(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)), 0);
  }

  std::optional<test::PlainTmpfs> tmpfs_;
  UniqueFd fd_;
};

TEST_F(UnwrittenTest, AWrittenFileHasNone) {
  write(0, kMiB);
  EXPECT_FALSE(may_have_unwritten(fd(), kMiB, kMiB));
  EXPECT_EQ(give_back_unwritten(fd(), kMiB, kMiB), GivenBack::kNothing);
  EXPECT_EQ(allocated_bytes(), kMiB);
}

TEST_F(UnwrittenTest, WhatWasReservedInAHoleIsGivenBack) {
  reserve(2 * kMiB);
  write(0, 4096);
  write(kMiB, 4096);
  ASSERT_EQ(allocated_bytes(), 2 * kMiB);
  EXPECT_TRUE(may_have_unwritten(fd(), 2 * kMiB, kMiB + 4096));
  EXPECT_EQ(give_back_unwritten(fd(), 2 * kMiB, kMiB + 4096), GivenBack::kSome);
  EXPECT_EQ(allocated_bytes(), kMiB - 4096 + 2 * 4096)
      << "all but what lies beyond its end, which is a trim's";
  EXPECT_EQ(test::difference(0, test::read_at(fd(), 0, 4096)), "");
  EXPECT_EQ(test::difference(kMiB, test::read_at(fd(), kMiB, 4096)), "");
}

TEST_F(UnwrittenTest, WhatItsOwnerAllocatedBeyondTheReservationStays) {
  write(0, 4096);
  ASSERT_EQ(::fallocate(fd(), 0, 0, kMiB), 0);
  EXPECT_EQ(give_back_unwritten(fd(), 4096, kMiB), GivenBack::kNothing);
  EXPECT_EQ(give_back_unwritten(fd(), 8192, kMiB), GivenBack::kSome);
  EXPECT_EQ(allocated_bytes(), kMiB - 4096) << "the second page";
}

TEST_F(UnwrittenTest, AHoleThatLargePagesFilledIsAHoleAgain) {
  write(0, 4 * kMiB);
  keep_hole(fd(), kMiB, 3 * kMiB);
  EXPECT_GE(allocated_bytes(), 2 * kMiB);
  EXPECT_LT(allocated_bytes(), 4 * kMiB);
  EXPECT_EQ(test::read_at(fd(), 0, 4096), test::pattern(0, 4 * kMiB).substr(0, 4096));
  EXPECT_EQ(test::read_at(fd(), 3 * kMiB, 4096), test::pattern(0, 4 * kMiB).substr(3 * kMiB, 4096));
}

}  // namespace kvcachefs::unwritten_test
