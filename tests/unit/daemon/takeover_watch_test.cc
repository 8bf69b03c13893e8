#include "daemon/takeover_watch.h"

#include <gtest/gtest.h>

#include "base/clock.h"
#include "base/progress.h"
#include "tests/support/mount.h"
#include "tests/support/user_process.h"

namespace kvcachefs::takeover_watch_test {

using namespace std::chrono_literals;

class TakeoverWatchTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root")); }
};

TEST_F(TakeoverWatchTest, AProcessThatMakesNoStepHangsAfterItsBound) {
  const test::UserProcess process(5, 6);
  TakeoverWatch watch;
  watch.begins(process.pid());
  EXPECT_FALSE(watch.hangs(1h));
  EXPECT_TRUE(watch.hangs(1ns));
  EXPECT_FALSE(watch.hangs(0ns)) << "no bound";
  EXPECT_TRUE(test::eventually([&] { return watch.hangs(20ms); }));
}

TEST_F(TakeoverWatchTest, AStepBeginsTheTimeAnew) {
  const test::UserProcess process(5, 6);
  TakeoverWatch watch;
  watch.begins(process.pid());
  ASSERT_TRUE(watch.hangs(1ns));
  count_step();
  EXPECT_FALSE(watch.hangs(1ns));
  EXPECT_TRUE(watch.hangs(1ns)) << "one step is not many";
}

TEST_F(TakeoverWatchTest, OneThatCannotBeLookedAtMayBeWaiting) {
  TakeoverWatch watch;
  watch.begins(INT32_MAX);
  for (int looks = 0; looks < 100; ++looks) EXPECT_FALSE(watch.hangs(1ns));
}

}  // namespace kvcachefs::takeover_watch_test
