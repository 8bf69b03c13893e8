#include "fs/caller.h"

#include <gtest/gtest.h>
#include <linux/capability.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

#include "tests/support/mount.h"
#include "tests/support/user_process.h"

namespace kvcachefs::caller_test {

using test::UserProcess;

class CallerTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root")); }
};

TEST_F(CallerTest, ANumberThatIsNoThreadIsNobody) {
  for (const pid_t number : {0, -1, INT32_MIN, INT32_MAX}) {
    const auto caller = Caller::of(number);
    ASSERT_FALSE(caller) << number;
    EXPECT_TRUE(caller.error().code == ESRCH || caller.error().code == ENOENT) << caller.error().code;
  }
}

TEST_F(CallerTest, RootOfThisHostMayDoAll) {
  const auto caller = Caller::of(::getpid());
  ASSERT_TRUE(caller);
  EXPECT_TRUE(caller->is_administrator());
  EXPECT_TRUE(caller->may(CAP_FSETID));
  EXPECT_FALSE(caller->may(63)) << "there is no such capability";
  EXPECT_EQ(caller->user(), 0u);
}

TEST_F(CallerTest, ASignalIsSeenUnlessItIsBlocked) {
  const auto sees = [] { return Caller::of(::gettid())->has_signal(); };
  EXPECT_FALSE(sees());
  std::thread([&] {
    sigset_t user_signal, before;
    ::sigemptyset(&user_signal);
    ::sigaddset(&user_signal, SIGUSR2);
    ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &user_signal, &before), 0);
    ASSERT_EQ(::pthread_kill(::pthread_self(), SIGUSR2), 0);
    EXPECT_FALSE(sees());
    int taken = 0;
    EXPECT_EQ(::sigwait(&user_signal, &taken), 0);
    EXPECT_EQ(::pthread_sigmask(SIG_SETMASK, &before, nullptr), 0);
  }).join();
  // One that it does not block waits while the process is stopped.
  const UserProcess process(5, 6);
  ASSERT_EQ(::kill(process.pid(), SIGSTOP), 0);
  int status = 0;
  ASSERT_EQ(::waitpid(process.pid(), &status, WUNTRACED), process.pid());
  EXPECT_FALSE(Caller::of(process.pid())->has_signal());
  ASSERT_EQ(::kill(process.pid(), SIGTERM), 0);  // a shell has what it runs beside itself ignore SIGINT
  EXPECT_TRUE(Caller::of(process.pid())->has_signal());
}

TEST_F(CallerTest, AUserHasItsGroupsAndNoCapability) {
  const UserProcess process(5, 6, {7, 4'000'000'000});
  const auto caller = Caller::of(process.pid());
  ASSERT_TRUE(caller);
  EXPECT_FALSE(caller->is_administrator());
  EXPECT_FALSE(caller->may(CAP_CHOWN)) << "the first of all";
  EXPECT_EQ(caller->user(), 5u);
  for (const gid_t group : {6u, 7u, 4'000'000'000u}) EXPECT_TRUE(caller->in_group(group)) << group;
  for (const gid_t group : {0u, 5u, 70u, 4'000u}) EXPECT_FALSE(caller->in_group(group)) << group;
}

TEST_F(CallerTest, ManyGroupsAreReadToTheLast) {
  std::vector<gid_t> groups;
  for (gid_t group = 1'000'000'000; groups.size() < 5000; ++group) groups.push_back(group);
  const UserProcess process(5, 6, groups);
  const auto caller = Caller::of(process.pid());
  ASSERT_TRUE(caller);
  EXPECT_TRUE(caller->in_group(groups.back()));
  EXPECT_FALSE(caller->in_group(groups.back() + 1));
  EXPECT_EQ(caller->user(), 5u);
}

TEST_F(CallerTest, ThreadsOfAProcessAreOneAndProcessesDiffer) {
  const auto own = Caller::of(::getpid())->process();
  ASSERT_TRUE(own);
  EXPECT_NE(*own, 0u);
  EXPECT_EQ(*own >> Caller::kProcessBits, 0u);
  std::thread([&] { EXPECT_EQ(Caller::of(::gettid())->process().value(), *own); }).join();
  const UserProcess a(5, 6), b(5, 6);
  const auto of_a = Caller::of(a.pid())->process(), of_b = Caller::of(b.pid())->process();
  ASSERT_TRUE(of_a && of_b);
  EXPECT_NE(*of_a, *of_b);
  EXPECT_NE(*of_a, *own);
}

TEST_F(CallerTest, ANameWithParenthesesIsNoField) {
  const auto before = Caller::of(::getpid())->process();
  char name[16] = {};
  ASSERT_EQ(::prctl(PR_GET_NAME, name), 0);
  ASSERT_EQ(::prctl(PR_SET_NAME, "a) S 1 2 (b) 3"), 0);
  const auto after = Caller::of(::getpid())->process();
  ASSERT_EQ(::prctl(PR_SET_NAME, name), 0);
  ASSERT_TRUE(before && after);
  EXPECT_EQ(*after, *before);
}

TEST_F(CallerTest, WhatHasEndedHasNoProcess) {
  UserProcess process(5, 6);
  const auto caller = Caller::of(process.pid());
  ASSERT_TRUE(caller);
  process.end();
  EXPECT_FALSE(caller->process());
  EXPECT_EQ(caller->user(), 5u) << "what was read of it stays";
  EXPECT_FALSE(caller->may(CAP_CHOWN));
}

}  // namespace kvcachefs::caller_test
