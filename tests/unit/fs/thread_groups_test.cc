#include "fs/thread_groups.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <thread>

namespace kvcachefs::thread_groups_test {

TEST(ThreadGroups, AThreadBelongsToItsProcessAndItsMainThreadToo) {
  ThreadGroups groups;
  const auto own = static_cast<uint64_t>(::getpid());
  EXPECT_EQ(groups.of(::getpid()), own);
  pid_t number = 0;
  std::thread thread([&] {
    number = ::gettid();
    EXPECT_EQ(groups.of(number), own);
  });
  thread.join();
  ASSERT_NE(number, ::getpid());
  EXPECT_EQ(groups.of(number), own) << "known although the thread has ended";
  EXPECT_NE(groups.of(::getppid()), own);
}

TEST(ThreadGroups, AThreadThatCannotBeReadCountsAsAProcess) {
  constexpr pid_t kNone = 0x7ffffff0;  // above the highest pid_max
  EXPECT_EQ(ThreadGroups().of(kNone), static_cast<uint64_t>(kNone));
}

TEST(ThreadGroups, AUserWhoWasNotToldIsLookedUp) {
  constexpr auto kNotTold = static_cast<uid_t>(-1);
  ThreadGroups groups;
  EXPECT_EQ(groups.user_of(::getpid(), 1234), 1234u);
  EXPECT_EQ(groups.user_of(::getpid(), kNotTold), ::geteuid());
  EXPECT_EQ(groups.user_of(::getpid(), kNotTold), ::geteuid()) << "from what is known";
  EXPECT_EQ(groups.user_of(0, kNotTold), kNotTold) << "nobody's";
}

}  // namespace kvcachefs::thread_groups_test
