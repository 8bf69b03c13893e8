// Cold entries opened and read as a whole through the mount, beside fio's reads of a file on the same file
// system.
#include <fmt/format.h>

#include <algorithm>

#include "bench/entries.h"
#include "bench/spill_pool.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kKiB = uint64_t{1} << 10;
constexpr uint64_t kMiB = uint64_t{1} << 20;

struct Case {
  std::string what;
  uint64_t entry_bytes;
  unsigned in_flight;
  FioJob::Kind kind;
  double bound;
};

void promote_row(Bench& bench, const DiskDirectory& disk, const Case& one) {
  // The amount is at least what the largest entries have in flight; of small entries it is no more than takes
  // a second.
  const uint64_t bytes = one.entry_bytes < kMiB
                             ? std::min(bench.scale.working_set_bytes, 256 * kMiB)
                             : std::max(bench.scale.working_set_bytes, (bench.scale.quick ? 64 : 256) * kMiB);
  const uint64_t entries = bytes / one.entry_bytes;
  const std::string fios = disk.make_file(fmt::format("fio-{}", one.entry_bytes), bytes);
  const Tmpfs memory(bench.work, fmt::format("promote-pages-{}", one.entry_bytes),
                     fmt::format("huge=within_size,size={}", one.in_flight * one.entry_bytes + 64 * kMiB));
  const SpillPool pool(bench, disk, fmt::format("promote-{}", one.entry_bytes),
                       {.memory_bytes = bytes / 4 * 5 + 64 * kMiB, .disk_bytes = bytes / 4 * 5 + 64 * kMiB});
  store_entries(pool.directory(), "entry", entries, payload(one.entry_bytes));
  pool.wait_until_clean();

  const FioJob plain{one.kind, fios, bytes, one.entry_bytes, one.in_flight};
  FioJob huge = plain;
  huge.pages = make_pages(memory, one.in_flight * one.entry_bytes + 2 * kMiB);
  const ReadJob ours{.directory = pool.directory(),
                     .prefix = "entry",
                     .entries = entries,
                     .entry_bytes = one.entry_bytes,
                     .clients = one.in_flight,
                     .shuffled = one.kind == FioJob::Kind::kRandomRead};
  const Rates rates = Rates::measure(disk_rounds(bench.scale),
                                     {[&] {
                                        pool.make_cold(entries);
                                        return read_whole(ours);
                                      },
                                      [&] { return fio_rate(huge); }, [&] { return fio_rate(plain); }});
  const std::vector<std::string> against = {"fio, huge pages", "fio"};
  for (size_t index = 0; index < against.size(); ++index)
    bench.report.add({one.what, against[index], gigabytes(rates.median_of(0)),
                      gigabytes(rates.median_of(index + 1)), rates.ratio(0, index + 1), Row::Bound::kAtLeast,
                      one.bound});
}

}  // namespace

void promote_rows(Bench& bench) {
  const DiskDirectory disk;
  using Kind = FioJob::Kind;
  for (const Case& one :
       {Case{"open and read cold entries of 2 MiB, 8 in flight", 2 * kMiB, 8, Kind::kRead, 0.9},
        Case{"open and read cold entries of 32 MiB, 8 in flight", 32 * kMiB, 8, Kind::kRead, 0.9},
        Case{"open and read cold entries of 64 KiB, random, 64 in flight", 64 * kKiB, 64, Kind::kRandomRead,
             0.7}})
    promote_row(bench, disk, one);
}

}  // namespace kvcachefs::bench
