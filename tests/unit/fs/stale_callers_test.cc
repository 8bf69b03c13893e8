#include "fs/stale_callers.h"

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace kvcachefs::stale_callers_test {

TEST(StaleCallers, OnlyTheFirstOfACallIsNew) {
  StaleCallers callers;
  EXPECT_FALSE(callers.again(1));
  EXPECT_TRUE(callers.again(1));
  // The kernel swallows an answer to its check of a name, and asks again.
  EXPECT_TRUE(callers.again(1));
}

TEST(StaleCallers, ACallThatWasToldIsKnown) {
  StaleCallers callers;
  EXPECT_FALSE(callers.told(1));
  EXPECT_FALSE(callers.again(1));
  EXPECT_TRUE(callers.told(1));
  EXPECT_FALSE(callers.told(2));
  EXPECT_TRUE(callers.settled(1));
  EXPECT_FALSE(callers.told(1));
  EXPECT_FALSE(callers.settled(1));
}

TEST(StaleCallers, EachThreadHasItsOwn) {
  StaleCallers callers;
  EXPECT_FALSE(callers.again(1));
  EXPECT_FALSE(callers.again(2));
  EXPECT_TRUE(callers.again(1));
}

TEST(StaleCallers, ACallThatEndedWellBeginsAnew) {
  StaleCallers callers;
  EXPECT_FALSE(callers.again(1));
  EXPECT_FALSE(callers.again(2));
  callers.settled(1);
  EXPECT_FALSE(callers.again(1));
  EXPECT_TRUE(callers.again(2));
}

// Where pools are made and removed, the second try waits for the mount's root, and so for each of them.
TEST(StaleCallers, ACallMayTakeHalfASecond) {
  StaleCallers callers;
  EXPECT_FALSE(callers.again(1));
  for (const uint64_t begun_ms = now_coarse_ms(); now_coarse_ms() - begun_ms < 500;)
    std::this_thread::yield();
  EXPECT_TRUE(callers.again(1));
}

// No thread may take another thread's mark for an old one, whichever thread read the clock first.
TEST(StaleCallers, ManyAtOnceKeepTheirMarks) {
  StaleCallers callers;
  std::atomic<int> lost = 0;
  std::vector<std::thread> threads;
  for (int thread = 1; thread <= 8; ++thread) {
    threads.emplace_back([&, thread] {
      for (int call = 0; call < 20'000; ++call) {
        const uint64_t begun_ms = now_coarse_ms();
        (void)callers.again(thread);
        // A thread that did not run for long may find its mark too old.
        if (!callers.again(thread) && now_coarse_ms() - begun_ms < 100) ++lost;
        callers.settled(thread);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lost, 0);
}

}  // namespace kvcachefs::stale_callers_test
