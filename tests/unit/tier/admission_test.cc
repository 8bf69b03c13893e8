#include "tier/entries/admission.h"

#include <gtest/gtest.h>

#include <random>
#include <thread>

namespace kvcachefs::admission_test {

constexpr uint64_t kWindow = 1 << 12;

TEST(AdmissionTest, AllIsAll) {
  const AdmissionFilter filter(Admission::kAll);
  EXPECT_TRUE(filter.admit(1, 0));
}

TEST(AdmissionTest, SecondAccessWantsAnOpen) {
  AdmissionFilter filter(Admission::kSecondAccess);
  filter.seen(1);
  filter.seen(1);
  EXPECT_FALSE(filter.admit(1, 0));
  EXPECT_TRUE(filter.admit(1, 1));
  EXPECT_TRUE(filter.admit(2, 7));
}

TEST(AdmissionTest, TinyLfuWantsTwoUses) {
  AdmissionFilter filter(Admission::kTinyLfu, kWindow);
  EXPECT_FALSE(filter.admit(1, 9));
  filter.seen(1);
  EXPECT_FALSE(filter.admit(1, 9));
  filter.seen(1);
  EXPECT_TRUE(filter.admit(1, 0));
  EXPECT_FALSE(filter.admit(2, 0));
}

TEST(AdmissionTest, TwoUsesWithinAWindowAreAlwaysSeen) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    std::mt19937_64 random(seed);
    AdmissionFilter filter(Admission::kTinyLfu, kWindow);
    const auto others = [&](uint64_t count) {
      for (uint64_t index = 0; index < count; ++index) filter.seen(random());
    };
    others(random() % (3 * kWindow));
    const uint64_t key = random();
    filter.seen(key);
    const uint64_t between = random() % (kWindow - 1);
    others(between);
    filter.seen(key);
    others(kWindow - 2 - between);
    EXPECT_TRUE(filter.admit(key, 0)) << "seed " << seed;
  }
}

TEST(AdmissionTest, UsesLongPastAreForgotten) {
  std::mt19937_64 random(1);
  AdmissionFilter filter(Admission::kTinyLfu, kWindow);
  for (uint64_t key = 0; key < 1000; ++key) {
    for (int use = 0; use < 20; ++use) filter.seen(key);
  }
  for (uint64_t index = 0; index < 2 * kWindow; ++index) filter.seen(random());
  int admitted = 0;
  for (uint64_t key = 0; key < 1000; ++key) admitted += filter.admit(key, 0) ? 1 : 0;
  EXPECT_LE(admitted, 5);
}

TEST(AdmissionTest, FewKeysSeenOnceAreTakenForOthers) {
  AdmissionFilter filter(Admission::kTinyLfu, kWindow);
  // The keys are consecutive, as inode numbers are.
  for (uint64_t key = 0; key < 2 * kWindow; ++key) filter.seen(key);
  uint64_t admitted = 0;
  for (uint64_t key = 0; key < 2 * kWindow; ++key) admitted += filter.admit(key, 0) ? 1 : 0;
  EXPECT_LT(admitted, 2 * kWindow / 40);
}

TEST(AdmissionTest, CountersStopAtTheirMaximum) {
  UseSketch sketch(kWindow);
  for (int use = 0; use < 1000; ++use) sketch.seen(1);
  EXPECT_EQ(sketch.uses(1), 15u);
  EXPECT_EQ(sketch.uses(2), 0u);
}

TEST(AdmissionTest, TheKindCanBeChanged) {
  AdmissionFilter filter(Admission::kAll, kWindow);
  filter.seen(1);
  filter.seen(1);
  filter.set_kind(Admission::kTinyLfu);
  EXPECT_EQ(filter.kind(), Admission::kTinyLfu);
  EXPECT_FALSE(filter.admit(1, 5));
  filter.seen(1);
  filter.seen(1);
  EXPECT_TRUE(filter.admit(1, 0));
  filter.set_kind(Admission::kSecondAccess);
  EXPECT_FALSE(filter.admit(1, 0));
}

TEST(AdmissionTest, ThreadsMayCountAtOnce) {
  AdmissionFilter filter(Admission::kAll, kWindow);
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) {
    threads.emplace_back([&filter, seed] {
      for (uint64_t index = 0; index < 2 * kWindow; ++index) {
        if (index == 100) filter.set_kind(Admission::kTinyLfu);
        filter.seen(seed * kWindow + index);
        filter.admit(index, 0);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  filter.seen(1);
  filter.seen(1);
  EXPECT_TRUE(filter.admit(1, 0));
}

}  // namespace kvcachefs::admission_test
