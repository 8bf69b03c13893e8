// Stores through the mount beside the same on a tmpfs with huge pages and on one without. Every store
// replaces the entry of the round before, so that all contestants take and give back memory at the same pace.
#include <fmt/format.h>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

Contestant writer(const std::string& directory, uint64_t entry_bytes, uint64_t count) {
  return [=] {
    const uint64_t begin_ns = now_ns();
    store_entries(directory, "entry", count, payload(entry_bytes));
    return rate(entry_bytes * count, begin_ns);
  };
}

}  // namespace

void write_rows(Bench& bench) {
  struct Bounds {
    uint64_t entry_bytes;
    double huge;
    double plain;
  };
  for (const Bounds& bounds : {Bounds{32 * kMiB, 0.75, 3}, Bounds{2 * kMiB, 0.5, 1.5}}) {
    const std::string size = "size=" + std::to_string(2 * bench.scale.working_set_bytes + 256 * kMiB);
    const Kvcachefs ours(bench.work, "write", size);
    const Tmpfs huge(bench.work, "write-huge", "huge=within_size," + size);
    const Tmpfs plain(bench.work, "write-plain", "huge=never," + size);
    const uint64_t count = bench.scale.working_set_bytes / bounds.entry_bytes;
    const Rates rates =
        Rates::measure(bench.scale.rounds, {writer(ours.directory(), bounds.entry_bytes, count),
                                            writer(huge.directory(), bounds.entry_bytes, count),
                                            writer(plain.directory(), bounds.entry_bytes, count)});
    const std::string what = fmt::format("create, write, close, rename of {} MiB", bounds.entry_bytes / kMiB);
    bench.report.add({what, "huge tmpfs", gigabytes(rates.median_of(0)), gigabytes(rates.median_of(1)),
                      rates.ratio(0, 1), Row::Bound::kAtLeast, bounds.huge});
    bench.report.add({what, "plain tmpfs", gigabytes(rates.median_of(0)), gigabytes(rates.median_of(2)),
                      rates.ratio(0, 2), Row::Bound::kAtLeast, bounds.plain});
  }
}

}  // namespace kvcachefs::bench
