// The cost of finding space on the disk and of giving it back.
#include <fmt/format.h>

#include <algorithm>

#include "bench/aged_space.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr size_t kPairs = 200'000;

double p99_us(uint64_t percent) {
  AgedSpace disk(kMixed);
  disk.age(percent);
  std::vector<uint64_t> times_ns(kPairs);
  for (uint64_t& time_ns : times_ns) time_ns = disk.replace();
  const auto at = times_ns.begin() + static_cast<std::ptrdiff_t>(kPairs / 100 * 99);
  std::ranges::nth_element(times_ns, at);
  return static_cast<double>(*at) / 1e3;
}

}  // namespace

void allocator_rows(Bench& bench) {
  for (const uint64_t percent : {10, 50, 95, 99}) {
    if (bench.scale.quick && percent != 50) continue;  // ageing takes seconds
    bench.report.add(
        {fmt::format("allocator: alloc and free, 1 TiB in units of 64 KiB, {} % full: p99 in µs", percent),
         "", "", "", p99_us(percent), percent <= 95 ? Row::Bound::kAtMost : Row::Bound::kNone, 2});
  }
}

}  // namespace kvcachefs::bench
