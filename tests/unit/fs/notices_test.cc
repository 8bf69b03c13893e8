// What each notice to the kernel is, over a session whose kernel is the test.
#include "fs/invalidator.h"

#include <atomic>
#include <future>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/served_test.h"

namespace kvcachefs::notices_test {

constexpr auto kNow = std::chrono::milliseconds(0);
constexpr auto kLong = std::chrono::minutes(10);
constexpr int kNotifyPrune = 9;  // Linux 6.18

class NoticesTest : public test::ServedTest {
 protected:
  void SetUp() override {
    ServedTest::SetUp();
    if (session_) worker_ = std::thread([this] { session_->notify(); });
  }
  void TearDown() override {
    freed_.set_value();
    if (session_) session_->stop_notifying();
    for (std::thread* worker : {&worker_, &second_})
      if (worker->joinable()) worker->join();
    ServedTest::TearDown();
  }

  std::thread worker_, second_;
  std::promise<void> freed_;
};

TEST_F(NoticesTest, EachEventIsTheNoticeThatTheKernelHasForIt) {
  invalidator_.discarded(3, 7, 8, "gone");
  auto notice = kernel_.next_notice();
  EXPECT_EQ(notice.code, FUSE_NOTIFY_DELETE);
  const auto gone = notice.as<fuse_notify_delete_out>();
  EXPECT_EQ(gone.parent, NodeId::of_inode(3, 7).value);
  EXPECT_EQ(gone.child, NodeId::of_inode(3, 8).value);
  EXPECT_EQ(notice.bytes.substr(sizeof gone), test::wire_name("gone"));

  invalidator_.appeared(3, 7, "new");
  notice = kernel_.next_notice();
  EXPECT_EQ(notice.code, FUSE_NOTIFY_INVAL_ENTRY);
  const auto appeared = notice.as<fuse_notify_inval_entry_out>();
  EXPECT_EQ(appeared.parent, NodeId::of_inode(3, 7).value);
  EXPECT_EQ(notice.bytes.substr(sizeof appeared), test::wire_name("new"));

  invalidator_.changed(3, 8);
  notice = kernel_.next_notice();
  EXPECT_EQ(notice.code, FUSE_NOTIFY_INVAL_INODE);
  const auto changed = notice.as<fuse_notify_inval_inode_out>();
  EXPECT_EQ(changed.ino, NodeId::of_inode(3, 8).value);
  EXPECT_EQ(changed.off, -1) << "the cached pages stay";
}

TEST_F(NoticesTest, TheKernelIsAskedToLetGoAndThenWhetherItHas) {
  std::vector<std::pair<uint64_t, bool>> heard;
  ASSERT_TRUE(invalidator_.can_let_go());
  invalidator_.let_go(3, {7, 8}, [&](uint64_t ino, bool known) { heard.emplace_back(ino, known); });
  auto notice = kernel_.next_notice();
  EXPECT_EQ(notice.code, kNotifyPrune);
  EXPECT_EQ(notice.as<uint32_t>(), 2u) << "both in one";
  EXPECT_EQ(notice.as<uint64_t>(16), NodeId::of_inode(3, 7).value);
  EXPECT_EQ(notice.as<uint64_t>(24), NodeId::of_inode(3, 8).value);
  for (const uint64_t ino : {7, 8}) {
    notice = kernel_.next_notice();
    EXPECT_EQ(notice.code, FUSE_NOTIFY_INVAL_INODE);
    EXPECT_EQ(notice.as<fuse_notify_inval_inode_out>().ino, NodeId::of_inode(3, ino).value);
  }
  invalidator_.wait_until_told(kLong);
  EXPECT_EQ(heard, (std::vector<std::pair<uint64_t, bool>>{{7, true}, {8, true}}));
  EXPECT_TRUE(invalidator_.can_let_go());
}

TEST_F(NoticesTest, ADirectorysNameIsDroppedAndNotDeleted) {
  std::vector<uint64_t> heard;
  invalidator_.drop_name(3, 7, 8, "directory", [&](uint64_t ino, bool) { heard.push_back(ino); });
  EXPECT_EQ(kernel_.next_notice().code, FUSE_NOTIFY_INVAL_ENTRY);
  EXPECT_EQ(kernel_.next_notice().as<fuse_notify_inval_inode_out>().ino, NodeId::of_inode(3, 8).value);
  invalidator_.wait_until_told(kLong);
  EXPECT_EQ(heard, std::vector<uint64_t>{8});
}

// A name waits for its directory, which a mkdir may hold that waits for an inode of those that are let go.
TEST_F(NoticesTest, InodesAreLetGoWhileANameWaitsForItsDirectory) {
  const auto waits = [until = freed_.get_future().share()](uint64_t, bool) { until.wait(); };
  invalidator_.drop_name(3, 7, 8, "directory", waits);
  EXPECT_EQ(kernel_.next_notice().code, FUSE_NOTIFY_INVAL_ENTRY);
  EXPECT_EQ(kernel_.next_notice().code, FUSE_NOTIFY_INVAL_INODE);
  invalidator_.discarded(3, 7, 9, "entry");
  invalidator_.let_go(3, {10}, [](uint64_t, bool) {});
  second_ = std::thread([this] { session_->notify(); });
  EXPECT_EQ(kernel_.next_notice().code, kNotifyPrune);
}

TEST_F(NoticesTest, AWaitEndsWhenAllOfBeforeIsTold) {
  for (uint64_t ino = 1; ino <= 100; ++ino) invalidator_.changed(3, ino);
  invalidator_.wait_until_told(kLong);
  EXPECT_EQ(kernel_.notices().size(), 100u);
}

TEST(Invalidator, NothingToTellIsToldAtOnce) {
  Invalidator invalidator;
  invalidator.wait_until_told(kLong);
  invalidator.step(nullptr, kNow);
}

TEST(Invalidator, AWaitHasItsBound) {
  Invalidator invalidator;
  invalidator.changed(1, 7);
  const uint64_t begun_ns = now_ns();
  invalidator.wait_until_told(std::chrono::milliseconds(20));
  EXPECT_GE(now_ns() - begun_ns, 10'000'000u) << "nobody tells it";
}

TEST(Invalidator, AWakeEndsAStep) {
  Invalidator invalidator;
  std::atomic<bool> ended{false};
  std::thread worker([&] {
    invalidator.step(nullptr, kLong);
    ended = true;
  });
  EXPECT_TRUE(test::eventually([&] {
    invalidator.wake();
    return ended.load();
  }));
  worker.join();
}

}  // namespace kvcachefs::notices_test
