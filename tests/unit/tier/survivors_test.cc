// The records that a process leaves for a successor, as the successor finds them.
#include "tier/survivors/survivors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <thread>
#include <vector>

namespace kvcachefs::survivors_test {

constexpr PoolInode kInode{.pool = 3, .ino = 4711};

class SurvivorsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto created = Survivors::create();
    ASSERT_TRUE(created) << created.error().message;
    survivors_ = std::move(*created);
    survivors_->begin_generation();
  }
  // successor() opens the same memory as another process would.
  std::unique_ptr<Survivors> successor() const {
    auto opened = Survivors::open(UniqueFd(::dup(survivors_->memory_fd())));
    EXPECT_TRUE(opened);
    (*opened)->begin_generation();
    return std::move(*opened);
  }
  static std::vector<OpenHandle> handles_of(Survivors& survivors) {
    std::vector<OpenHandle> result;
    survivors.handles().for_each([&](const OpenHandle& handle) { result.push_back(handle); });
    return result;
  }

  std::unique_ptr<Survivors> survivors_;
};

TEST(NoSurvivorsTest, NothingIsKeptAndNothingFails) {
  Survivors nobody;
  EXPECT_FALSE(nobody.supervised());
  EXPECT_EQ(nobody.handles().opened({.inode = kInode, .unique = 1}).value(), 0u);
  EXPECT_TRUE(nobody.handles().is_open(0)) << "without numbers a close goes by its own count";
  EXPECT_FALSE(nobody.handles().opened_by(1));
  EXPECT_TRUE(nobody.backing_ids().held({.inode = kInode, .id = 1}));
  EXPECT_TRUE(nobody.kept_inodes().keep({.inode = kInode}));
  EXPECT_TRUE(nobody.kept_inodes().list().empty());
  EXPECT_FALSE(nobody.children().may_succeed());
}

TEST_F(SurvivorsTest, OpenHandlesAreFoundAndClosedOnce) {
  const uint64_t reader = survivors_->handles().opened({.inode = kInode, .unique = 10}).value();
  const uint64_t writer =
      survivors_->handles().opened({.inode = kInode, .unique = 12, .writer = true}).value();
  EXPECT_NE(reader, writer);
  const auto next = successor();
  const auto handles = handles_of(*next);
  ASSERT_EQ(handles.size(), 2u);
  EXPECT_EQ(handles[0].inode, kInode);
  EXPECT_FALSE(handles[0].writer);
  EXPECT_TRUE(handles[1].writer);
  ASSERT_TRUE(next->handles().opened_by(12));
  EXPECT_EQ(next->handles().opened_by(12)->handle, writer);
  EXPECT_EQ(next->handles().opened_by(12)->inode, kInode);
  EXPECT_FALSE(next->handles().opened_by(14));
  next->handles().closed(reader);
  EXPECT_FALSE(next->handles().is_open(reader));
  // Another handle has its place now: a repeated close of the old handle does not close the new one.
  const uint64_t another = next->handles().opened({.inode = kInode, .unique = 16}).value();
  next->handles().closed(reader);
  EXPECT_TRUE(next->handles().is_open(another));
  EXPECT_EQ(handles_of(*next).size(), 2u);
}

// What a connection that has ended leaves: writers, which may go on past the daemon.
TEST_F(SurvivorsTest, AnotherConnectionForgetsWhatTheKernelHeld) {
  survivors_->connection().connected(7, std::vector(40, std::byte{1}));
  (void)survivors_->handles().opened({.inode = kInode, .unique = 10});
  const uint64_t writer =
      survivors_->handles().opened({.inode = kInode, .unique = 12, .writer = true}).value();
  ASSERT_TRUE(survivors_->backing_ids().held({.inode = kInode, .id = 5}));
  ASSERT_TRUE(survivors_->kept_inodes().keep({.inode = kInode, .generation = 1, .fd = 9}));
  survivors_->requests().begin(14, false);
  survivors_->requests().attempt(14);
  survivors_->requests().attempt_rename(16, 1, 2);
  survivors_->children().forbid_resending();
  EXPECT_FALSE(survivors_->children().may_succeed());
  EXPECT_TRUE(survivors_->children().may_succeed_with_another_connection());

  survivors_->reconnected(8);
  const auto next = successor();
  EXPECT_EQ(next->connection().device_fd(), 8);
  EXPECT_FALSE(next->connection().has_init());
  const auto handles = handles_of(*next);
  ASSERT_EQ(handles.size(), 1u);
  EXPECT_TRUE(handles[0].writer);
  EXPECT_EQ(handles[0].lost, writer);
  EXPECT_FALSE(next->handles().opened_by(12)) << "the next connection counts from the beginning";
  next->backing_ids().for_each([](const HeldBacking&, bool) { ADD_FAILURE() << "a backing id"; });
  EXPECT_EQ(next->backing_ids().highest(), 0);
  EXPECT_TRUE(next->kept_inodes().list().empty());
  EXPECT_FALSE(next->requests().was_attempted(14));
  EXPECT_FALSE(next->requests().attempted_rename(16));
  EXPECT_TRUE(next->children().may_succeed());
  next->connection().connected(8, std::vector(40, std::byte{2}));
  EXPECT_EQ(next->connection().init().front(), std::byte{2});
  next->handles().closed(writer);
  EXPECT_TRUE(handles_of(*next).empty());

  survivors_->children().forbid_succession();
  survivors_->reconnected(9);
  EXPECT_FALSE(survivors_->children().may_succeed_with_another_connection());
}

TEST_F(SurvivorsTest, AUserHasAShareOfTheOpenHandles) {
  const auto open_one = [](Survivors& survivors, uid_t user) {
    return survivors.handles().opened({.inode = kInode, .user = user});
  };
  uint64_t last = 0;
  for (uint32_t i = 0; i < OpenHandles::kShareOfUser; ++i) {
    const auto handle = open_one(*survivors_, 65534);
    ASSERT_TRUE(handle) << i;
    last = *handle;
  }
  EXPECT_EQ(open_one(*survivors_, 65534).error().code, EMFILE);
  EXPECT_TRUE(open_one(*survivors_, 1000)) << "the others have theirs";
  survivors_->handles().closed(last);
  survivors_->handles().closed(last);
  EXPECT_TRUE(open_one(*survivors_, 65534));
  EXPECT_EQ(open_one(*survivors_, 65534).error().code, EMFILE);
  // Whose the opens of a process that died were is not known.
  const auto next = successor();
  const auto handle = open_one(*next, 65534);
  ASSERT_TRUE(handle);
  next->handles().closed(*handle);
  next->handles().closed(last - 1);
  EXPECT_TRUE(open_one(*next, 65534));
}

TEST_F(SurvivorsTest, BackingIdsUntilTheyAreGivenBack) {
  ASSERT_TRUE(survivors_->backing_ids().held({.inode = kInode, .id = 5}));
  ASSERT_TRUE(survivors_->backing_ids().held({.inode = {.pool = 1, .ino = 2}, .id = 9}));
  survivors_->backing_ids().giving_back(5);
  const auto next = successor();
  std::vector<std::pair<int32_t, bool>> found;
  next->backing_ids().for_each(
      [&](const HeldBacking& held, bool closing) { found.emplace_back(held.id, closing); });
  EXPECT_EQ(found, (std::vector<std::pair<int32_t, bool>>{{5, true}, {9, false}}));
  EXPECT_EQ(next->backing_ids().highest(), 9);
  next->backing_ids().given_back(5);
  next->backing_ids().given_back(9);
  next->backing_ids().given_back(9);
  found.clear();
  next->backing_ids().for_each(
      [&](const HeldBacking& held, bool closing) { found.emplace_back(held.id, closing); });
  EXPECT_TRUE(found.empty());
  EXPECT_EQ(next->backing_ids().highest(), 9) << "what was not written down is near it";
}

TEST_F(SurvivorsTest, KeptInodes) {
  const uint32_t place = survivors_->kept_inodes().keep({.inode = kInode, .generation = 8, .fd = 77}).value();
  const auto next = successor();
  const auto kept = next->kept_inodes().list();
  ASSERT_EQ(kept.size(), 1u);
  EXPECT_EQ(kept[0].first, place);
  EXPECT_EQ(kept[0].second.inode, kInode);
  EXPECT_EQ(kept[0].second.generation, 8u);
  EXPECT_EQ(kept[0].second.fd, 77);
  next->kept_inodes().let_go(place);
  EXPECT_TRUE(survivors_->kept_inodes().list().empty());
}

TEST_F(SurvivorsTest, WhatBecameOfRequests) {
  const auto run = [this](uint64_t unique, auto what) {
    std::thread([&] {
      survivors_->requests().begin(unique, false);
      what();
    }).join();
  };
  run(2, [] {});
  run(4, [this] { survivors_->requests().attempt(4); });
  run(6, [] {});
  // What waited for the catalog is carried out by a thread that has taken no request, or another one.
  std::thread([this] {
    survivors_->requests().attempt(6);
    survivors_->requests().attempt(0);
  }).join();
  run(10, [this] { survivors_->requests().attempt(12); });
  const auto next = successor();
  EXPECT_FALSE(next->requests().was_attempted(2));
  EXPECT_TRUE(next->requests().was_attempted(4));
  EXPECT_TRUE(next->requests().was_attempted(6));
  EXPECT_FALSE(next->requests().was_attempted(8));
  EXPECT_FALSE(next->requests().was_attempted(10));
  EXPECT_TRUE(next->requests().was_attempted(12));
  std::thread([&] { next->requests().begin(4, next->requests().was_attempted(4)); }).join();
  EXPECT_TRUE(successor()->requests().was_attempted(4)) << "by the one before the one before";
}

TEST_F(SurvivorsTest, ThreadsThatComeAndGoLeaveTheOthersPlacesAlone) {
  std::thread([this] {
    survivors_->requests().begin(2, false);
    survivors_->requests().attempt(2);
    std::thread([this] {
      for (uint32_t request = 0; request <= Requests::kPlaces; ++request) {
        survivors_->requests().begin(4 + 2 * request, false);
        survivors_->requests().leave();
      }
    }).join();
    EXPECT_TRUE(survivors_->requests().was_attempted(2));
    EXPECT_NE(survivors_->requests().oldest_ns(), 0u) << "it has its request in hand";
    survivors_->requests().end();
  }).join();
  EXPECT_EQ(survivors_->requests().oldest_ns(), 0u);
}

TEST_F(SurvivorsTest, TheOldestRequestInHand) {
  EXPECT_EQ(survivors_->requests().oldest_ns(), 0u);
  std::thread([this] {
    survivors_->requests().begin(2, false);
    const uint64_t begun_ns = survivors_->requests().oldest_ns();
    EXPECT_NE(begun_ns, 0u);
    survivors_->requests().still_at_it();
    EXPECT_GT(survivors_->requests().oldest_ns(), begun_ns);
    survivors_->requests().end();
    EXPECT_EQ(survivors_->requests().oldest_ns(), 0u);
    survivors_->requests().still_at_it();
    EXPECT_EQ(survivors_->requests().oldest_ns(), 0u) << "what may take as long as it likes is watched again";
    survivors_->requests().begin(4, false);
  }).join();
  EXPECT_NE(survivors_->requests().oldest_ns(), 0u);
  const auto next = successor();
  EXPECT_EQ(next->requests().oldest_ns(), 0u) << "a dead one's";
}

TEST_F(SurvivorsTest, TheConnection) {
  EXPECT_FALSE(survivors_->connection().device_fd());
  const std::vector<std::byte> init(104, std::byte{7});
  survivors_->connection().connected(9, init);
  const auto next = successor();
  EXPECT_EQ(next->connection().device_fd(), 9);
  EXPECT_TRUE(std::ranges::equal(next->connection().init(), init));
  EXPECT_TRUE(next->children().may_succeed());
  next->children().forbid_succession();
  EXPECT_FALSE(survivors_->children().may_succeed());
}

TEST_F(SurvivorsTest, PoolsReplaceOneAnother) {
  EXPECT_EQ(survivors_->pools(), "");
  ASSERT_TRUE(survivors_->set_pools("pool 1 a\n"));
  ASSERT_TRUE(survivors_->set_pools("pool 1 a\npool 2 b\n"));
  EXPECT_EQ(successor()->pools(), "pool 1 a\npool 2 b\n");
  const auto refused = survivors_->set_pools(std::string(Survivors::kMostPoolsBytes + 1, 'x'));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ENOSPC);
  EXPECT_EQ(survivors_->pools(), "pool 1 a\npool 2 b\n");
}

TEST_F(SurvivorsTest, Renames) {
  survivors_->requests().attempt_rename(0, 3, 4);  // for no request
  survivors_->requests().attempt_rename(20, 1, 2);
  const auto next = successor();
  ASSERT_TRUE(next->requests().attempted_rename(20));
  EXPECT_EQ(next->requests().attempted_rename(20)->first_ino, 1u);
  EXPECT_EQ(next->requests().attempted_rename(20)->second_ino, 2u);
  EXPECT_FALSE(next->requests().attempted_rename(22));
  // Those that are answered make room, so it stays whatever others do.
  Requests& requests = survivors_->requests();
  for (uint64_t unique = 1000; unique < 1000 + 3 * Requests::kRenames; ++unique) {
    requests.attempt_rename(unique, 5, 6);
    requests.attempt_rename(unique, 7, 8);  // tried again
    const auto own = requests.own_rename(unique);
    ASSERT_TRUE(own);
    EXPECT_EQ(own->first_ino, 7u);
    requests.rename_answered(*own);
    ASSERT_FALSE(requests.attempted_rename(unique));
  }
  ASSERT_TRUE(next->requests().attempted_rename(20));
  // Nor do many at once, as those that wait for a slow disk.
  for (uint64_t unique = 100; unique < 400; ++unique) requests.attempt_rename(unique, 5, 6);
  for (uint64_t unique = 10'000; unique < 10'000 + 2 * Requests::kRenames; ++unique) {
    requests.attempt_rename(unique, 5, 6);
    requests.rename_answered(*requests.own_rename(unique));
  }
  for (uint64_t unique = 100; unique < 400; ++unique)
    ASSERT_TRUE(next->requests().attempted_rename(unique)) << unique;
  ASSERT_TRUE(next->requests().attempted_rename(20));
  // Beyond what there is room for the latest is on record.
  for (uint64_t unique = 100'000; unique < 100'000 + 2 * Requests::kRenames; ++unique) {
    requests.attempt_rename(unique, 9, 10);
    ASSERT_TRUE(requests.attempted_rename(unique));
  }
}

TEST_F(SurvivorsTest, WhoWasToldStale) {
  Requests& requests = survivors_->requests();
  requests.told_stale(1);
  for (int32_t thread = 2; thread < 1000; ++thread) {
    requests.told_stale(thread);
    requests.told_stale(thread);
    if (thread > 100) requests.settled_stale(thread);
  }
  auto told = successor()->requests().told_stale_lately();
  std::ranges::sort(told);
  EXPECT_EQ(told.size(), 100u);
  EXPECT_EQ(told.front(), 1);
  EXPECT_EQ(told.back(), 100);
  EXPECT_FALSE(successor()->requests().lost_stale_lately());
  for (int32_t thread = 2000; thread < 2200; ++thread) requests.told_stale(thread);
  EXPECT_EQ(successor()->requests().told_stale_lately().size(), size_t{Requests::kStales});
  EXPECT_TRUE(successor()->requests().lost_stale_lately());
}

TEST_F(SurvivorsTest, AnotherFormatIsRefused) {
  const UniqueFd small(memfd_create("x", 0));
  ASSERT_EQ(::ftruncate(small.get(), 4096), 0);
  auto opened = Survivors::open(UniqueFd(::dup(small.get())));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, EPROTONOSUPPORT);
  const uint32_t newer = Survivors::format() + 1;
  ASSERT_EQ(::pwrite(survivors_->memory_fd(), &newer, sizeof newer, 8), static_cast<ssize_t>(sizeof newer));
  opened = Survivors::open(UniqueFd(::dup(survivors_->memory_fd())));
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, EPROTONOSUPPORT);
}

// A process that is killed at any moment leaves true records.
TEST_F(SurvivorsTest, AProcessKilledAtAnyMomentLeavesTheTruth) {
  for (int round = 0; round < 50; ++round) {
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      survivors_->begin_generation();
      for (uint64_t unique = 2;; unique += 2) {
        const auto handle = survivors_->handles().opened({.inode = kInode, .unique = unique, .writer = true});
        const auto place = survivors_->kept_inodes().keep({.inode = kInode, .generation = 1, .fd = 3});
        survivors_->handles().closed(*handle);
        survivors_->kept_inodes().let_go(*place);
      }
    }
    ::usleep(static_cast<useconds_t>(100 * round));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto next = successor();
    const auto handles = handles_of(*next);
    EXPECT_LE(handles.size(), 1u);
    for (const OpenHandle& handle : handles) {
      EXPECT_EQ(handle.inode, kInode);
      EXPECT_TRUE(handle.writer);
      ASSERT_TRUE(next->handles().opened_by(handle.unique));
      next->handles().closed(next->handles().opened_by(handle.unique)->handle);
    }
    for (const auto& [place, kept] : next->kept_inodes().list()) {
      EXPECT_EQ(kept.fd, 3);
      next->kept_inodes().let_go(place);
    }
  }
  // No records have piled up, because the same few places are used over and over.
  EXPECT_LT(handles_of(*survivors_).size(), 1u);
}

}  // namespace kvcachefs::survivors_test
