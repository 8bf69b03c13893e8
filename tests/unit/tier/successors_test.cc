#include "tier/entries/successors.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <thread>

namespace kvcachefs::successors_test {

using Inos = std::vector<uint64_t>;

class SuccessorsTest : public testing::Test {
 protected:
  static constexpr uint64_t kClient = 77;

  Inos open(uint64_t ino, uint64_t client = kClient) {
    successors_.opened(client, ino, now_ms_ += 10);
    return successors_.after(ino);
  }
  // sequence() opens these inodes in order, as a client does that has just begun.
  void sequence(const Inos& inos, uint64_t client = kClient) {
    pause();
    for (const uint64_t ino : inos) open(ino, client);
    pause();
  }
  void pause() { now_ms_ += Successors::kCloseMs + 1; }

  Successors successors_;
  uint64_t now_ms_ = 1'000'000;
};

TEST_F(SuccessorsTest, NothingIsKnownAtFirst) {
  EXPECT_EQ(open(1), Inos());
  EXPECT_EQ(open(2), Inos());
}

TEST_F(SuccessorsTest, WhatFollowedOnceIsExpectedAgain) {
  sequence({1, 2, 3, 4, 5, 6, 7});
  EXPECT_EQ(open(1), (Inos{2, 3, 4, 5}));
  EXPECT_EQ(open(2), (Inos{3, 4, 5, 6}));
  pause();
  EXPECT_EQ(open(5, kClient + 1), (Inos{6, 7}));
  EXPECT_EQ(open(7, kClient + 1), Inos());
}

TEST_F(SuccessorsTest, OnlyWhatCameSoonFollowed) {
  successors_.opened(kClient, 1, 5000);
  successors_.opened(kClient, 2, 5000 + Successors::kCloseMs);
  successors_.opened(kClient, 3, 5000 + 2 * Successors::kCloseMs + 1);
  now_ms_ = 20'000;
  EXPECT_EQ(open(1), Inos{2});
  pause();
  EXPECT_EQ(open(2), Inos());
}

TEST_F(SuccessorsTest, ClientsAreToldApart) {
  for (uint64_t index = 0; index < 10; ++index) {
    open(100 + index, 1);
    open(200 + index, 2);
  }
  pause();
  EXPECT_EQ(open(100, 3), (Inos{101, 102, 103, 104}));
  pause();
  EXPECT_EQ(open(200, 3), (Inos{201, 202, 203, 204}));
}

TEST_F(SuccessorsTest, OpeningTheSameAgainIsNoFollowing) {
  sequence({1, 1, 1, 2, 2, 3});
  EXPECT_EQ(open(1), (Inos{2, 3}));
}

TEST_F(SuccessorsTest, ACycleEnds) {
  sequence({1, 2, 3, 1});
  EXPECT_EQ(open(1), (Inos{2, 3}));
  EXPECT_EQ(open(2), (Inos{3, 1}));
}

TEST_F(SuccessorsTest, AnotherFollowerReplacesOneSeenOnce) {
  sequence({1, 2});
  sequence({1, 3});
  EXPECT_EQ(open(1), Inos{3});
}

TEST_F(SuccessorsTest, AConfirmedFollowerStaysForAWhile) {
  for (int round = 0; round < 5; ++round) sequence({1, 2});
  sequence({1, 3});
  sequence({1, 3});
  pause();
  EXPECT_EQ(open(1), Inos{2});
  sequence({1, 3});
  EXPECT_EQ(open(1), Inos{3});
}

TEST_F(SuccessorsTest, TheRemovedIsForgotten) {
  sequence({1, 2, 3, 4});
  successors_.removed(3);
  EXPECT_EQ(open(1), Inos{2});
  pause();
  EXPECT_EQ(open(3), Inos());
  sequence({1, 2, 5});
  EXPECT_EQ(open(1), (Inos{2, 5}));
  successors_.removed(4);
  successors_.removed(999);
}

TEST_F(SuccessorsTest, ManyEntriesAndClientsTakeNoMoreMemory) {
  Successors small(64, 16);
  std::mt19937_64 random(1);
  for (uint64_t step = 0; step < 100'000; ++step) {
    const uint64_t ino = 1 + random() % 500;
    small.opened(random() % 100, ino, step);
    const Inos chain = small.after(ino);
    ASSERT_LE(chain.size(), Successors::kDepth);
    std::set<uint64_t> seen{ino};
    for (const uint64_t next : chain) ASSERT_TRUE(next != 0 && seen.insert(next).second);
    if (step % 7 == 0) small.removed(1 + random() % 500);
  }
  // A sequence that is used now still gets its place.
  for (uint64_t ino = 1; ino <= 3; ++ino) small.opened(1000, ino, 200'000);
  EXPECT_EQ(small.after(1), (Inos{2, 3}));
}

TEST_F(SuccessorsTest, LongSequencesAreKept) {
  Inos inos;
  for (uint64_t ino = 1; ino <= Successors::kDefaultLinks / 2; ++ino) inos.push_back(ino);
  sequence(inos);
  size_t kept = 0;
  for (const uint64_t ino : inos) kept += open(ino, ino).empty() ? 0 : 1;
  EXPECT_GT(kept, inos.size() * 9 / 10);
}

TEST_F(SuccessorsTest, ThreadsMayLearnAtOnce) {
  std::vector<std::thread> threads;
  for (uint64_t client = 0; client < 4; ++client) {
    threads.emplace_back([this, client] {
      for (uint64_t step = 0; step < 5000; ++step) {
        successors_.opened(client, 1 + client * 100 + step % 100, step);
        if (step % 500 == 0) successors_.removed(1 + step % 400);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(successors_.after(150), (Inos{151, 152, 153, 154}));
}

}  // namespace kvcachefs::successors_test
