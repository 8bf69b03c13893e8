// The cost of an allocation and a freeing on a disk in use, by how full it is. One pair stores an entry and
// removes a random one of the same size.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "bench/aged_space.h"

namespace kvcachefs::bench {
namespace {

void alloc_free(benchmark::State& state) {
  AgedSpace disk(static_cast<uint64_t>(state.range(0)));
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
}
// One run of fixed length is enough, because ageing takes longer than the measurement.
BENCHMARK(alloc_free)
    ->Iterations(200'000)
    ->ArgNames({"units", "full"})
    ->ArgsProduct({{1, 32, 512, kMixed}, {10, 50, 95, 99}});

}  // namespace
}  // namespace kvcachefs::bench
