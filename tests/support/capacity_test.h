// The fixture of the unit tests of a pool's Capacity: a tmpfs of a given size, of which some is used. It
// needs root. One thread, beside an AnsweringEvictor's; failures are recorded with GoogleTest.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "tests/support/arena_test.h"
#include "tests/support/no_kernel.h"
#include "tier/pool/capacity.h"

namespace kvcachefs::test {

class CapacityTest : public ArenaTest {
 protected:
  // The tmpfs has as much memory as the pool; only what is allocated takes any.
  Capacity& make(uint64_t size_bytes, Watermarks marks = {50, 80}, uint64_t entry_size_bytes = 0) {
    EXPECT_TRUE(arena_->resize(size_bytes));
    PoolOptions options;
    options.size_bytes = size_bytes;
    options.watermarks = marks;
    options.entry_size_bytes = entry_size_bytes;
    capacity_.emplace(options, surroundings_, *arena_, counters_, shares_);
    return *capacity_;
  }
  uint64_t free_bytes() const { return arena_->usage().free_bytes; }
  void use(uint64_t bytes) {
    const UniqueFd file = open("used", O_CREAT | O_RDWR);
    ASSERT_TRUE(sys::truncate(file.get(), 0));
    if (bytes > 0) {
      ASSERT_TRUE(sys::allocate(file.get(), 0, 0, bytes));
    }
    ASSERT_EQ(arena_->usage().used_bytes(), bytes);
  }

  NoBacking backing_;
  Wakeup evictor_;
  PoolSurroundings surroundings_{.arena_path = {}, .backing_store = &backing_, .evictor = &evictor_};
  PoolCounters counters_;
  Shares shares_;
  std::optional<Capacity> capacity_;
};

// An evictor's thread that answers each wake-up.
class AnsweringEvictor {
 public:
  AnsweringEvictor(Wakeup& wakeup, std::function<void()> answer)
      : wakeup_(wakeup), thread_([this, its = std::move(answer)] {
          for (;;) {
            wakeup_.wait(std::chrono::minutes(10));
            if (ended_) return;
            ++rounds_;
            its();
          }
        }) {}
  ~AnsweringEvictor() {
    ended_ = true;
    wakeup_.wake();
    thread_.join();
  }
  int rounds() const { return rounds_; }

 private:
  Wakeup& wakeup_;
  std::atomic<bool> ended_{false};
  std::atomic<int> rounds_{0};
  std::thread thread_;
};

}  // namespace kvcachefs::test
