#include "base/histogram.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <thread>
#include <vector>

namespace kvcachefs::histogram_test {

TEST(Histogram, EmptyAnswersZero) {
  const Histogram histogram;
  EXPECT_EQ(histogram.snapshot().count, 0u);
}

TEST(Histogram, BoundsAreInclusive) {
  Histogram histogram;
  for (const uint64_t value : {0, 1, 2, 3, 4, 5, 1024, 1025}) histogram.record(value);
  const HistogramSnapshot snapshot = histogram.snapshot();
  EXPECT_EQ(snapshot.buckets[0], 2u);   // 0 and 1
  EXPECT_EQ(snapshot.buckets[1], 1u);   // 2
  EXPECT_EQ(snapshot.buckets[2], 2u);   // 3 and 4
  EXPECT_EQ(snapshot.buckets[3], 1u);   // 5
  EXPECT_EQ(snapshot.buckets[10], 1u);  // 1024
  EXPECT_EQ(snapshot.buckets[11], 1u);  // 1025
  EXPECT_EQ(snapshot.count, 8u);
  EXPECT_EQ(snapshot.sum_ns, 0u + 1 + 2 + 3 + 4 + 5 + 1024 + 1025);
}

TEST(Histogram, HugeValuesFallIntoTheLastBucket) {
  Histogram histogram;
  histogram.record(UINT64_MAX);
  EXPECT_EQ(histogram.snapshot().buckets.back(), 1u);
}

TEST(Histogram, NothingIsLostAcrossThreads) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kRecords = 20'000;
  Histogram histogram;
  {
    std::vector<std::jthread> threads;
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&histogram] {
        for (uint64_t i = 0; i < kRecords; ++i) histogram.record(i);
      });
    }
  }
  EXPECT_EQ(histogram.snapshot().count, kThreads * kRecords);
  EXPECT_EQ(histogram.snapshot().sum_ns, kThreads * (kRecords * (kRecords - 1) / 2));
}

}  // namespace kvcachefs::histogram_test
