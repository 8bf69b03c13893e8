#include "daemon/child.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>

#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/user_process.h"

namespace kvcachefs::child_test {

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

constexpr pid_t kNobody = INT32_MAX;  // more than any process's number

class ChildTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root")); }
};

TEST_F(ChildTest, SharesTheTableOfDescriptors) {
  const int before = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  const uint64_t limit = descriptor_limit();
  const pid_t child = fork_sharing_descriptors();
  if (child == 0) {
    ::close(before);
    const int made = ::memfd_create("made", MFD_CLOEXEC);
    ::_exit(made == before && descriptor_limit() < limit ? 0 : 1);
  }
  ASSERT_GT(child, 0);
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << "its limit is lower than this process's";
  EXPECT_EQ(::ftruncate(before, 1), 0) << "what it has opened is a file here";
  EXPECT_EQ(descriptor_limit(), limit);
  ::close(before);
}

TEST_F(ChildTest, TheLimitIsRaisedAsFarAsItGoes) {
  EXPECT_EQ(test::in_child([] {
              const rlimit low{64, 128}, wanted{1 << 20, 1 << 20};
              if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return 1;
              raise_descriptor_limit();
              if (descriptor_limit() == wanted.rlim_cur) return 0;
              if (::setrlimit(RLIMIT_NOFILE, &wanted) == 0) return 2;
              return descriptor_limit() == low.rlim_max ? 0 : 3;  // without CAP_SYS_RESOURCE
            }),
            0);
  EXPECT_EQ(test::as_user(5, 6,
                          [] {
                            const rlimit low{64, 128};
                            if (::setrlimit(RLIMIT_NOFILE, &low) != 0) return 1;
                            raise_descriptor_limit();
                            return descriptor_limit() == low.rlim_max ? 0 : 2;
                          }),
            0);
}

TEST_F(ChildTest, AllButTheGivenDescriptorsAreClosed) {
  for (const std::set<int>& kept : {std::set<int>{}, {3}, {20}, {20, 21}, {0, 2, 5, 23}, {3, 4, 5}}) {
    EXPECT_EQ(test::in_child([&] {
                for (int fd = 3; fd < 24; ++fd)
                  if (::dup2(STDERR_FILENO, fd) != fd) return 100;
                close_all_but(kept);
                for (int fd = 0; fd < 24; ++fd)
                  if (is_open(fd) != (fd <= STDERR_FILENO || kept.contains(fd))) return fd + 1;
                return 0;
              }),
              0);
  }
}

TEST_F(ChildTest, OneThatRunsHasNotEnded) {
  const test::UserProcess process(5, 6);
  EXPECT_FALSE(has_ended_but_for_notifiers(process.pid()));
  EXPECT_FALSE(waits_in_kernel(process.pid())) << "a signal would reach it";
  EXPECT_EQ(hung_thread(process.pid(), std::chrono::hours(1)), std::nullopt);
}

TEST_F(ChildTest, WhatCannotBeFoundOutCountsAsAlive) {
  EXPECT_FALSE(has_ended_but_for_notifiers(kNobody));
  EXPECT_TRUE(waits_in_kernel(kNobody));
}

}  // namespace kvcachefs::child_test
