#include "base/mutex.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace kvcachefs {
namespace {

TEST(FairMutexTest, WhoTakesItAgainAndAgainLetsOthersIn) {
  FairMutex mutex;
  std::atomic<bool> is_held = false, is_done = false;
  int turns = 0;
  std::thread greedy([&] {
    for (; !is_done && turns < 1000; ++turns) {
      FairLock lock(mutex);
      is_held = true;
      ::usleep(1000);
    }
  });
  while (!is_held) ::usleep(100);
  for (int i = 0; i < 20; ++i) FairLock lock(mutex);
  is_done = true;
  greedy.join();
  EXPECT_LT(turns, 200);
}

}  // namespace
}  // namespace kvcachefs
