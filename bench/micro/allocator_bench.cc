// What an allocation and a freeing cost on a disk of 1 TiB in units of 64 KiB that entries were stored on and
// taken from at random, by how full it is. One pair stores an entry and removes a random one of the same
// size.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "alloc/extent_allocator.h"
#include "base/clock.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kUnits = uint64_t{1} << 24;
// Sizes in units; 0: any of the others.
constexpr uint64_t kMixed = 0;
constexpr uint64_t kSizes[] = {1, 32, 512};

uint64_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

// What one allocation gave, without a vector of its own where it is one extent: 2^24 of them are held.
class Held {
 public:
  explicit Held(std::vector<Extent> extents) {
    if (extents.size() == 1) {
      one_ = extents.front();
    } else {
      more_ = std::make_unique<std::vector<Extent>>(std::move(extents));
    }
  }
  std::span<const Extent> extents() const {
    return more_ ? std::span(std::as_const(*more_)) : std::span(&one_, 1);
  }
  uint64_t units() const {
    uint64_t sum = 0;
    for (const Extent& extent : extents()) sum += extent.count;
    return sum;
  }

 private:
  Extent one_;
  std::unique_ptr<std::vector<Extent>> more_;
};

class Disk {
 public:
  explicit Disk(uint64_t size) : allocator_(kUnits), size_(size) {}

  // Filled wholly, then freed at random down to that part, then used for a while: a disk that has been in
  // use.
  void age(uint64_t percent) {
    while (store()) continue;
    while (allocator_.used_units() * 100 > kUnits * percent) remove();
    for (size_t round = 0; round < std::min(2 * held_.size(), kAgeing); ++round) replace();
    extents_ = stored_ = 0;
  }

  // Answers what the two calls took. Stays as full as it is.
  uint64_t replace() {
    Held& leaving = held_[next_random(random_) % held_.size()];
    const uint64_t wanted = leaving.units();
    const uint64_t began_ns = now_ns();
    auto got = allocator_.allocate(wanted);
    if (got) allocator_.free(leaving.extents());
    const uint64_t took_ns = now_ns() - began_ns;
    if (got) leaving = hold(std::move(*got));
    return took_ns;
  }

  double extents_per_entry() const {
    return static_cast<double>(extents_) / static_cast<double>(std::max(uint64_t{1}, stored_));
  }

  const ExtentAllocator& allocator() const { return allocator_; }

 private:
  static constexpr size_t kAgeing = 1'000'000;

  bool store() {
    auto got =
        allocator_.allocate(size_ == kMixed ? kSizes[next_random(random_) % std::size(kSizes)] : size_);
    if (got) held_.push_back(hold(std::move(*got)));
    return got.has_value();
  }

  void remove() {
    std::swap(held_[next_random(random_) % held_.size()], held_.back());
    allocator_.free(held_.back().extents());
    held_.pop_back();
  }

  Held hold(std::vector<Extent> extents) {
    extents_ += extents.size();
    ++stored_;
    return Held(std::move(extents));
  }

  ExtentAllocator allocator_;
  const uint64_t size_;
  uint64_t random_ = 1;
  uint64_t extents_ = 0;
  uint64_t stored_ = 0;
  std::vector<Held> held_;
};

void alloc_free(benchmark::State& state) {
  Disk disk(static_cast<uint64_t>(state.range(0)));
  disk.age(static_cast<uint64_t>(state.range(1)));
  std::vector<uint64_t> times_ns;
  for (auto _ : state) times_ns.push_back(disk.replace());
  const auto quantile = [&](double part) {
    const auto at = times_ns.begin() + static_cast<int64_t>(part * static_cast<double>(times_ns.size() - 1));
    std::nth_element(times_ns.begin(), at, times_ns.end());
    return static_cast<double>(*at);
  };
  state.counters["p50_ns"] = quantile(0.5);
  state.counters["p99_ns"] = quantile(0.99);
  state.counters["p999_ns"] = quantile(0.999);
  state.counters["extents"] = disk.extents_per_entry();
  const uint64_t began_ns = now_ns();
  state.counters["longest_run"] = static_cast<double>(disk.allocator().largest_free_run());
  state.counters["longest_run_us"] = static_cast<double>(now_ns() - began_ns) / 1e3;
}
// Ageing takes longer than what is measured: once is enough.
BENCHMARK(alloc_free)
    ->Iterations(200'000)
    ->ArgNames({"units", "full"})
    ->ArgsProduct({{1, 32, 512, kMixed}, {10, 50, 95, 99}});

}  // namespace
}  // namespace kvcachefs
