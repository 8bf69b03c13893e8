// Which notices wait for which others. There is no kernel: the outcome of a notice tells that it was handled.
#include "fs/invalidator.h"

#include <gtest/gtest.h>

#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "tests/support/mount.h"

namespace kvcachefs::invalidator_test {

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr uint16_t kStuck = 1;
constexpr uint16_t kOther = 2;

class InvalidatorTest : public ::testing::Test {
 protected:
  ~InvalidatorTest() override {
    if (stuck_.joinable()) {
      go_on();
      stuck_.join();
    }
  }
  void drop(uint16_t pool, uint64_t ino) {
    invalidator_.drop_name(pool, 1, ino, "name", [this](uint64_t told, bool) {
      MutexLock lock(mutex_);
      told_.push_back(told);
    });
  }
  // A thread is stuck in the kernel with a notice of pool kStuck.
  void stick() {
    std::promise<void> begun;
    invalidator_.drop_name(kStuck, 1, 1, "name", [&, until = freed_.get_future().share()](uint64_t, bool) {
      begun.set_value();
      until.wait();
    });
    stuck_ = std::thread([this] { invalidator_.step(nullptr, kNow); });
    begun.get_future().wait();
  }
  void go_on() {
    if (!std::exchange(gone_on_, true)) freed_.set_value();
  }
  std::vector<uint64_t> told() {
    MutexLock lock(mutex_);
    return told_;
  }

  Invalidator invalidator_;

 private:
  Mutex mutex_;
  std::vector<uint64_t> told_ GUARDED_BY(mutex_);
  std::promise<void> freed_;
  bool gone_on_ = false;
  std::thread stuck_;
};

TEST_F(InvalidatorTest, OtherPoolsDoNotWaitForOneThatIsStuck) {
  stick();
  drop(kStuck, 2);
  drop(kOther, 3);
  drop(kOther, 4);
  invalidator_.step(nullptr, kNow);
  invalidator_.step(nullptr, kNow);
  EXPECT_EQ(told(), (std::vector<uint64_t>{3, 4})) << "the stuck pool's next notice keeps its place";
  go_on();
  EXPECT_TRUE(test::eventually([&] {
    invalidator_.step(nullptr, kNow);
    return told() == std::vector<uint64_t>{3, 4, 2};
  }));
}

TEST_F(InvalidatorTest, APoolThatIsStuckIsBehindOnceSoMuchIsQueued) {
  stick();
  for (size_t i = 1; i < Invalidator::kMostNotices; ++i) {
    ASSERT_FALSE(invalidator_.is_behind(kStuck)) << i;
    invalidator_.changed(kStuck, i);
  }
  EXPECT_TRUE(invalidator_.is_behind(kStuck)) << "the one in hand counts";
  EXPECT_FALSE(invalidator_.is_behind(kOther));
}

TEST_F(InvalidatorTest, APoolIsNotBehindWhatIsTold) {
  for (int round = 0; round < 2; ++round) {
    for (size_t i = 0; i < Invalidator::kMostNotices; ++i) drop(kOther, i);
    EXPECT_TRUE(invalidator_.is_behind(kOther));
    invalidator_.step(nullptr, kNow);
    EXPECT_FALSE(invalidator_.is_behind(kOther));
  }
}

TEST_F(InvalidatorTest, AllThatWasQueuedBeforeIsWaitedFor) {
  stick();
  drop(kOther, 2);
  invalidator_.step(nullptr, kNow);
  auto waiting =
      std::async(std::launch::async, [&] { invalidator_.wait_until_told(std::chrono::minutes(1)); });
  EXPECT_EQ(waiting.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout);
  go_on();
  EXPECT_EQ(waiting.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  drop(kOther, 3);
  invalidator_.wait_until_told(kNow);
  EXPECT_EQ(told(), std::vector<uint64_t>{2});
}

}  // namespace kvcachefs::invalidator_test
