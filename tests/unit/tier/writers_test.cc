#include "tier/pool/writers.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

namespace kvcachefs::writers_test {

constexpr uint64_t kIno = 7;

TEST(Writers, MemoryIsPromisedOnce) {
  Writers writers;
  EXPECT_TRUE(writers.open(1, 0, 60, 100));
  EXPECT_FALSE(writers.open(2, 0, 60, 100)) << "40 of the free bytes are not promised yet";
  EXPECT_TRUE(writers.open(3, 0, 40, 100));
  EXPECT_EQ(writers.promised_bytes(), 100u);
  EXPECT_EQ(writers.promised_to(1), 60u);
  EXPECT_EQ(writers.promised_to(2), 0u);
}

TEST(Writers, ASecondOpenDoesNotAddToThePromise) {
  Writers writers;
  EXPECT_TRUE(writers.open(kIno, 0, 60, 100));
  EXPECT_TRUE(writers.open(kIno, 0, 50, 100)) << "its own promise does not count against it";
  EXPECT_EQ(writers.promised_bytes(), 60u);
  EXPECT_EQ(writers.count(), 1u);
}

TEST(Writers, WhatAWriterTakesIsNoLongerPromised) {
  Writers writers;
  ASSERT_TRUE(writers.open(kIno, 10, 60, 100));
  EXPECT_EQ(writers.seen(kIno, 30, 30, 5).promised_bytes, 40u);
  EXPECT_EQ(writers.reserved_bytes(), 5u);
  EXPECT_EQ(writers.seen(kIno, 200, 200, 0).promised_bytes, 0u);
  EXPECT_EQ(writers.reserved_bytes(), 0u);
  EXPECT_EQ(writers.promised_bytes(), 0u);
}

TEST(Writers, AWriterThatHasFlushedIsInactiveUntilItsFileGrows) {
  Writers writers;
  ASSERT_TRUE(writers.open(kIno, 0, 60, 100));
  EXPECT_TRUE(writers.seen(kIno, 10, 10, 0).active);
  writers.flushed(kIno);
  EXPECT_EQ(writers.promised_bytes(), 0u);
  EXPECT_FALSE(writers.seen(kIno, 10, 10, 0).active);
  EXPECT_TRUE(writers.seen(kIno, 11, 10, 0).active);
}

TEST(Writers, TheLastCloseEndsThePromiseAndTellsWhatWasOutgrown) {
  Writers writers;
  ASSERT_TRUE(writers.open(kIno, 10, 50, 100));
  (void)writers.seen(kIno, 20, 20, 7);
  EXPECT_FALSE(writers.close(kIno, 60)) << "10 before and 50 promised";
  EXPECT_EQ(writers.promised_bytes(), 0u);
  EXPECT_EQ(writers.reserved_bytes(), 0u);
  EXPECT_TRUE(writers.next_to_see(10).empty());
  ASSERT_TRUE(writers.open(kIno, 10, 50, 100));
  EXPECT_TRUE(writers.close(kIno, 61));
  EXPECT_FALSE(writers.close(kIno, 1000)) << "no writer";
}

TEST(Writers, AWriterThroughTheDaemonHasNoPromiseToOutgrow) {
  Writers writers;
  writers.open(kIno, 0, false);
  EXPECT_FALSE(writers.seen(kIno, 1, 1, 0).passes);
  EXPECT_FALSE(writers.close(kIno, 1000));
  writers.open(kIno, 0, true);
  writers.open(kIno, 0, false);
  EXPECT_TRUE(writers.seen(kIno, 1, 1, 0).passes) << "one of the two does";
}

TEST(Writers, IdleOnesAreSeenInTurn) {
  Writers writers;
  const auto next = [&](size_t idle) {
    auto inodes = writers.next_to_see(idle);
    std::ranges::sort(inodes);
    return inodes;
  };
  for (uint64_t ino = 1; ino <= 5; ++ino) writers.open(ino, 0, true);
  EXPECT_EQ(next(0), (std::vector<uint64_t>{1, 2, 3, 4, 5})) << "they have just been opened";
  for (const uint64_t ino : {1, 2, 4, 5}) {
    writers.flushed(ino);
    (void)writers.seen(ino, 0, 0, 0);
  }
  EXPECT_EQ(next(0), std::vector<uint64_t>{3});
  EXPECT_EQ(next(2), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_EQ(next(2), (std::vector<uint64_t>{3, 4, 5}));
  EXPECT_EQ(next(3), (std::vector<uint64_t>{1, 2, 3, 4}));
  EXPECT_EQ(next(100), (std::vector<uint64_t>{1, 2, 3, 4, 5}));
  EXPECT_TRUE(writers.seen(4, 1, 1, 0).active) << "it goes on";
  EXPECT_EQ(next(0), (std::vector<uint64_t>{3, 4}));
  (void)writers.close(3, 0);
  (void)writers.close(1, 0);
  EXPECT_EQ(next(100), (std::vector<uint64_t>{2, 4, 5}));
}

TEST(Writers, ARaisedPromiseNeverShrinks) {
  Writers writers;
  writers.raise(kIno, 100);
  EXPECT_EQ(writers.promised_bytes(), 0u) << "no writer";
  ASSERT_TRUE(writers.open(kIno, 0, 60, 100));
  writers.raise(kIno, 500);
  writers.raise(kIno, 50);
  EXPECT_EQ(writers.promised_to(kIno), 500u);
  EXPECT_FALSE(writers.open(2, 0, 0, 499)) << "others' promises exceed what is free";
}

}  // namespace kvcachefs::writers_test
