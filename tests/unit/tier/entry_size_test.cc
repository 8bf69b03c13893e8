#include "tier/pool/entry_size.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <random>
#include <thread>
#include <vector>

namespace kvcachefs::entry_size_test {

TEST(EntrySize, NothingKnownAtFirst) {
  const EntrySizeLearner learner;
  EXPECT_EQ(learner.expected_bytes(), 0u);
}

TEST(EntrySize, OneSizeIsTheAnswer) {
  EntrySizeLearner learner;
  learner.closed(4096);
  EXPECT_EQ(learner.expected_bytes(), 4096u);
}

TEST(EntrySize, OneFreakDoesNotSetIt) {
  EntrySizeLearner learner;
  learner.closed(2 << 20);
  learner.closed(1 << 30);
  learner.closed(2 << 20);
  EXPECT_EQ(learner.expected_bytes(), 2u << 20);
  learner.closed(1 << 30);
  EXPECT_EQ(learner.expected_bytes(), 1u << 30);
}

TEST(EntrySize, EmptyEntriesCountAsSizes) {
  EntrySizeLearner learner;
  learner.closed(0);
  learner.closed(4096);
  EXPECT_EQ(learner.expected_bytes(), 0u);
}

TEST(EntrySize, AgreesWithSortingTheLastSizes) {
  std::mt19937_64 random(20240531);
  EntrySizeLearner learner;
  std::deque<uint64_t> last;
  for (int step = 0; step < 5000; ++step) {
    const uint64_t size = random() % 50;
    learner.closed(size);
    last.push_back(size);
    if (last.size() > EntrySizeLearner::kRemembered) last.pop_front();
    std::vector<uint64_t> sorted(last.begin(), last.end());
    std::sort(sorted.rbegin(), sorted.rend());
    ASSERT_EQ(learner.expected_bytes(), sorted.size() > 1 ? sorted[1] : sorted[0]) << "step " << step;
  }
}

TEST(EntrySize, NamesOfAClassDifferInHexadecimalDigits) {
  const auto class_of = SizesByName::class_of;
  EXPECT_EQ(class_of("3f07.data"), class_of("0011aa.data"));
  EXPECT_NE(class_of("3f07.data"), class_of("3f07.data.metadata"));
  EXPECT_NE(class_of(""), 0);
  SizesByName sizes;
  EXPECT_EQ(sizes.expected_bytes(class_of("1")), 0u);
  sizes.closed(0, 4096);
  EXPECT_EQ(sizes.expected_bytes(0), 0u) << "nothing tells its name";
  sizes.closed(class_of("1"), 8192);
  sizes.closed(class_of("2"), 4096);
  EXPECT_EQ(sizes.expected_bytes(class_of("3")), 4096u);
  EXPECT_EQ(sizes.smallest_bytes(class_of("3")), 4096u);
}

TEST(EntrySize, ThreadsMayCloseAtOnce) {
  EntrySizeLearner learner;
  {
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&learner] {
        for (int i = 0; i < 10'000; ++i) learner.closed(4096);
      });
    }
  }
  EXPECT_EQ(learner.expected_bytes(), 4096u);
}

}  // namespace kvcachefs::entry_size_test
