#include "alloc/extent_allocator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

namespace kvcachefs::extent_allocator_test {

using Extents = std::vector<Extent>;

uint64_t total(const Extents& extents) {
  uint64_t units = 0;
  for (const Extent& extent : extents) units += extent.count;
  return units;
}

// A naive model of the allocator: one flag for each unit, true if the unit is free.
class Model {
 public:
  explicit Model(uint64_t units) : free_(units, true) {}

  uint64_t free_units() const { return static_cast<uint64_t>(std::count(free_.begin(), free_.end(), true)); }
  uint64_t largest_run() const {
    uint64_t best = 0;
    uint64_t current = 0;
    for (const bool free : free_) {
      current = free ? current + 1 : 0;
      best = std::max(best, current);
    }
    return best;
  }
  bool is(const Extent& extent, bool free) const {
    if (extent.start > free_.size() || extent.count > free_.size() - extent.start) return false;
    for (uint64_t unit = extent.start; unit < extent.end(); ++unit) {
      if (free_[unit] != free) return false;
    }
    return true;
  }
  void mark(const Extent& extent, bool free) {
    std::fill_n(free_.begin() + static_cast<int64_t>(extent.start), extent.count, free);
  }

 private:
  std::vector<bool> free_;
};

// A stream of operations on the allocator and the model, which are compared after each.
class Stream {
 public:
  Stream(uint64_t seed, uint64_t units) : random_(seed), allocator_(units), model_(units), units_(units) {}

  void allocate(uint64_t wanted) {
    const uint64_t free_units = model_.free_units();
    const uint64_t largest = model_.largest_run();
    std::optional<Extents> got = allocator_.allocate(wanted);
    ASSERT_EQ(got.has_value(), wanted <= free_units);
    if (!got) return;
    ASSERT_EQ(total(*got), wanted);
    // Because a free run of 127 units contains a whole word of the bitmap, every small request finds it.
    if (wanted > 0 && wanted <= 64 && largest >= 127) {
      ASSERT_EQ(got->size(), 1u);
    }
    for (const Extent& extent : *got) {
      ASSERT_GT(extent.count, 0u);
      ASSERT_TRUE(model_.is(extent, true)) << extent.start << "+" << extent.count;
      model_.mark(extent, false);
    }
    if (wanted > 0) held_.push_back(std::move(*got));
  }

  void claim(const Extent& extent) {
    const bool can = model_.is(extent, true);
    ASSERT_EQ(allocator_.claim(extent), can);
    if (!can) return;
    model_.mark(extent, false);
    if (extent.count > 0) held_.push_back({extent});
  }

  // free_one() frees one of the held allocations, or a part of its first extent.
  void free_one() {
    if (held_.empty()) return;
    const size_t index = random_() % held_.size();
    Extents& extents = held_[index];
    if (random_() % 4 == 0 && extents.front().count > 1) {
      Extent& first = extents.front();
      const Extent part{.start = first.start, .count = 1 + random_() % (first.count - 1)};
      first = {.start = part.end(), .count = first.count - part.count};
      give({&part, 1});
      return;
    }
    give(extents);
    extents = std::move(held_.back());
    held_.pop_back();
  }

  void compare() const {
    ASSERT_EQ(allocator_.free_units(), model_.free_units());
    ASSERT_EQ(allocator_.used_units(), units_ - model_.free_units());
    ASSERT_LE(allocator_.long_free_run(), model_.largest_run());
    ASSERT_GE(4 * allocator_.long_free_run(), model_.largest_run());
  }

  // A second allocator that is told which units are in use has the same units free.
  void rebuild() const {
    Extents claims;
    for (const Extents& extents : held_) claims.insert(claims.end(), extents.begin(), extents.end());
    std::shuffle(claims.begin(), claims.end(), std::mt19937_64(1));
    ExtentAllocator second(units_);
    for (const Extent& extent : claims) ASSERT_TRUE(second.claim(extent));
    for (const Extent& extent : claims) ASSERT_FALSE(second.claim(extent));
    ASSERT_EQ(second.free_units(), allocator_.free_units());
    ASSERT_EQ(second.long_free_run(), allocator_.long_free_run());
    for (uint64_t unit = 0; unit < units_; ++unit) {
      ASSERT_EQ(second.claim({.start = unit, .count = 1}), model_.is({.start = unit, .count = 1}, true));
    }
  }

  void step(uint64_t largest) {
    switch (random_() % 8) {
      case 0:
      case 1:
      case 2:
      case 3:
        return allocate(1 + random_() % largest);
      case 4:
        return claim({.start = random_() % (units_ + 2), .count = random_() % largest});
      default:
        return free_one();
    }
  }

  void fill(uint64_t largest) {
    while (allocator_.free_units() > 0 && !testing::Test::HasFatalFailure()) {
      allocate(1 + random_() % std::min(largest, allocator_.free_units()));
    }
    allocate(1);
    allocate(0);
  }

  void drain() {
    while (!held_.empty() && !testing::Test::HasFatalFailure()) free_one();
    ASSERT_EQ(allocator_.long_free_run(), units_);
  }

 private:
  void give(std::span<const Extent> extents) {
    allocator_.free(extents);
    for (const Extent& extent : extents) model_.mark(extent, true);
  }

  std::mt19937_64 random_;
  ExtentAllocator allocator_;
  Model model_;
  std::vector<Extents> held_;
  uint64_t units_;
};

TEST(ExtentAllocatorTest, DoesAsTheModelDoes) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed ^ 0x5eed);
    const uint64_t units = 1 + random() % (seed % 2 == 0 ? 300 : 5000);
    const uint64_t largest = 1 + random() % (seed % 4 < 2 ? 40 : 1 + units / 2);
    Stream stream(seed, units);
    for (int step = 0; step < 250 && !HasFatalFailure(); ++step) {
      stream.step(largest);
      stream.compare();
      if (step % 100 == 50) stream.fill(largest);
      if (step % 100 == 99) stream.rebuild();
    }
    stream.fill(1);
    stream.compare();
    stream.drain();
    stream.compare();
    if (HasFatalFailure()) return;
  }
}

TEST(ExtentAllocatorTest, NothingAtAll) {
  ExtentAllocator allocator(0);
  EXPECT_EQ(allocator.allocate(1), std::nullopt);
  EXPECT_EQ(allocator.allocate(0), Extents());
  EXPECT_EQ(allocator.long_free_run(), 0u);
  EXPECT_FALSE(allocator.claim({.start = 0, .count = 1}));
}

TEST(ExtentAllocatorTest, ClaimsBeyondTheEndAreRefused) {
  ExtentAllocator allocator(100);
  EXPECT_FALSE(allocator.claim({.start = 99, .count = 2}));
  EXPECT_FALSE(allocator.claim({.start = 101, .count = 0}));
  EXPECT_FALSE(allocator.claim({.start = 1, .count = ~uint64_t{0}}));
  EXPECT_FALSE(allocator.claim({.start = ~uint64_t{0}, .count = 2}));
  EXPECT_EQ(allocator.free_units(), 100u);
  EXPECT_TRUE(allocator.claim({.start = 99, .count = 1}));
}

TEST(ExtentAllocatorTest, AFreshDiskIsFilledInOrder) {
  for (uint64_t entry_units : {1, 3, 32, 33, 63, 64, 65, 512, 5000}) {
    ExtentAllocator allocator(1 << 17);
    ASSERT_TRUE(allocator.claim({.start = 0, .count = 1}));
    uint64_t expected = 1;
    while (allocator.free_units() >= entry_units) {
      const auto got = allocator.allocate(entry_units);
      ASSERT_EQ(got, (Extents{{.start = expected, .count = entry_units}})) << entry_units << " units";
      expected += entry_units;
    }
  }
}

TEST(ExtentAllocatorTest, HolesOfEqualEntriesAreTakenWhole) {
  for (uint64_t entry_units : {1, 3, 32, 48, 64, 512}) {
    ExtentAllocator allocator(1 << 18);
    ASSERT_TRUE(allocator.claim({.start = 0, .count = 1}));
    std::vector<Extents> held;
    while (auto got = allocator.allocate(entry_units)) held.push_back(std::move(*got));
    std::mt19937_64 random(entry_units);
    std::shuffle(held.begin(), held.end(), random);
    uint64_t asked = 0;
    uint64_t extents = 0;
    for (size_t round = 0; round < 20'000; ++round) {
      // About 10 % of the units are free.
      while (held.size() * entry_units > (1 << 18) * 9 / 10) {
        std::swap(held[random() % held.size()], held.back());
        allocator.free(held.back());
        held.pop_back();
      }
      held.push_back(*allocator.allocate(entry_units));
      ++asked;
      extents += held.back().size();
    }
    // The allocator looks at only a few runs; if none of them suffices, a request gets several extents.
    EXPECT_LE(extents, asked + asked / 1000) << entry_units << " units";
  }
}

TEST(ExtentAllocatorTest, SmallRequestsLeaveTheLongRunsAlone) {
  ExtentAllocator allocator(1 << 16);
  std::vector<Extents> small;
  for (int index = 0; index < 1000; ++index) small.push_back(*allocator.allocate(1));
  for (size_t index = 0; index < small.size(); index += 2) allocator.free(small[index]);
  const uint64_t run = allocator.long_free_run();
  for (int index = 0; index < 500; ++index) ASSERT_LT(allocator.allocate(1)->front().start, 1000u);
  EXPECT_EQ(allocator.long_free_run(), run);
}

TEST(ExtentAllocatorTest, FreeingTwiceStops) {
  ExtentAllocator allocator(1000);
  const Extents got = *allocator.allocate(100);
  const Extent one{.start = got.front().start + 70, .count = 1};
  allocator.free({&one, 1});
  EXPECT_DEATH(allocator.free(got), "check failed");
  const Extent beyond{.start = 990, .count = 11};
  EXPECT_DEATH(allocator.free({&beyond, 1}), "check failed");
}

TEST(ExtentAllocatorTest, ThreadsNeverShareAUnit) {
  constexpr uint64_t kUnits = 20'000;
  ExtentAllocator allocator(kUnits);
  std::vector<std::atomic<int>> owners(kUnits);
  const auto work = [&](uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<Extents> held;
    const auto drop = [&](size_t index) {
      for (const Extent& extent : held[index]) {
        for (uint64_t unit = extent.start; unit < extent.end(); ++unit) EXPECT_EQ(--owners[unit], 0);
      }
      allocator.free(held[index]);
      held.erase(held.begin() + static_cast<int64_t>(index));
    };
    for (int step = 0; step < 2000; ++step) {
      if (auto got = allocator.allocate(1 + random() % 300)) {
        for (const Extent& extent : *got) {
          for (uint64_t unit = extent.start; unit < extent.end(); ++unit) EXPECT_EQ(++owners[unit], 1);
        }
        held.push_back(std::move(*got));
      }
      if (held.size() > 20) drop(random() % held.size());
    }
    while (!held.empty()) drop(0);
  };
  std::vector<std::thread> threads;
  for (uint64_t seed = 0; seed < 4; ++seed) threads.emplace_back(work, seed);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(allocator.long_free_run(), kUnits);
}

}  // namespace kvcachefs::extent_allocator_test
