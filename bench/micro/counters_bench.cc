// The cost of the counters and histograms that each open, create and close updates.
#include <benchmark/benchmark.h>

#include "base/histogram.h"
#include "tier/pool/entry_size.h"

namespace kvcachefs {
namespace {

void histogram_record(benchmark::State& state) {
  static Histogram histogram;
  uint64_t ns = 1;
  for (auto _ : state) histogram.record(ns = (ns * 3) & 0xfffff);
}
BENCHMARK(histogram_record)->ThreadRange(1, 2);

void entry_size_closed(benchmark::State& state) {
  static EntrySizeLearner learner;
  for (auto _ : state) learner.closed(uint64_t{2} << 20);
}
BENCHMARK(entry_size_closed)->ThreadRange(1, 2);

void entry_size_expected(benchmark::State& state) {
  EntrySizeLearner learner;
  for (uint64_t entry = 0; entry < 64; ++entry) learner.closed(entry << 12);
  for (auto _ : state) benchmark::DoNotOptimize(learner.expected_bytes());
}
BENCHMARK(entry_size_expected);

}  // namespace
}  // namespace kvcachefs
