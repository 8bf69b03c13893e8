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

}  // namespace kvcachefs::thread_groups_test
