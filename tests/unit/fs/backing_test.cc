// What an open file rests on in daemon I/O; in passthrough it takes the kernel's connection.
#include "fs/backing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

namespace kvcachefs::backing_test {

constexpr PoolInode kInode{.pool = 3, .ino = 7};

class BackingTest : public ::testing::Test {
 protected:
  BackingTest() { backing_.decide(false, -1); }
  static ino_t inode_of(int fd) {
    struct stat attributes {};
    return ::fstat(fd, &attributes) == 0 ? attributes.st_ino : 0;
  }

  Survivors survivors_;
  SessionBacking backing_{survivors_};
  const UniqueFd file_{::memfd_create("entry", MFD_CLOEXEC)};
};

TEST_F(BackingTest, IsADescriptorOfItsOwn) {
  EXPECT_TRUE(backing_.needs_write_access());
  EXPECT_FALSE(backing_.passthrough());
  const auto one = backing_.acquire(file_.get(), kInode);
  const auto other = backing_.acquire(file_.get(), kInode);
  ASSERT_TRUE(one && other);
  EXPECT_NE(*one, file_.get());
  EXPECT_NE(*one, *other);
  EXPECT_EQ(inode_of(*one), inode_of(file_.get()));
  EXPECT_EQ(::fcntl(*one, F_GETFD), FD_CLOEXEC);
  backing_.give_back(*one);
  EXPECT_EQ(::fcntl(*one, F_GETFD), -1);
  EXPECT_EQ(inode_of(*other), inode_of(file_.get()));
  backing_.give_back(*other);
  EXPECT_EQ(::fcntl(*other, F_GETFD), -1);
}

TEST_F(BackingTest, OfNoFileThereIsNone) {
  const auto none = backing_.acquire(-1, kInode);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, EBADF);
}

TEST_F(BackingTest, AUserHasItsShareOfDescriptors) {
  survivors_.descriptors().limit(40);
  std::vector<int32_t> held;
  for (uint64_t number = 0; number < survivors_.descriptors().share_of_user(); ++number) {
    const auto got = backing_.acquire(file_.get(), kInode);
    ASSERT_TRUE(got) << number;
    held.push_back(*got);
  }
  EXPECT_EQ(backing_.acquire(file_.get(), kInode).error().code, EDQUOT);
  EXPECT_EQ(backing_.acquire(-1, kInode).error().code, EBADF);
  backing_.give_back(held.back());
  const auto again = backing_.acquire(file_.get(), kInode);
  ASSERT_TRUE(again) << "what is given back can be had again";
  held.back() = *again;
  for (const int32_t backing : held) backing_.give_back(backing);
}

TEST_F(BackingTest, WithoutAConnectionThereIsNoPassthrough) {
  backing_.decide(true, -1);
  EXPECT_FALSE(backing_.needs_write_access());
  const auto none = backing_.acquire(file_.get(), kInode);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, EBADF);
  survivors_.backing_ids().for_each(
      [](const HeldBacking&, bool) { ADD_FAILURE() << "none was written down"; });
}

}  // namespace kvcachefs::backing_test
