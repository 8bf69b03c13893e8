// Daemon I/O, which is what kernels before 6.9 offer, beside a tmpfs without huge pages, as /dev/shm is. The
// rows are whole stores, whole reads through new descriptors, the same in small pieces, and mappings, each as
// from Linux 6.6 on and as before.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <span>
#include <string>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

enum class Act { kStore, kRead, kReadAgain, kReadSmall, kScan, kScanAgain };

// A first read comes after a store, which leaves nothing in the page cache.
Contestant contestant(const std::string& directory, uint64_t entry_bytes, uint64_t count, Act act) {
  return [=] {
    volatile uint64_t sink = 0;
    const bool again = act == Act::kReadAgain || act == Act::kScanAgain;
    const bool scans = act == Act::kScan || act == Act::kScanAgain;
    const std::span<std::byte> piece = payload(act == Act::kReadSmall ? kMiB / 16 : entry_bytes);
    const auto use = [&] {
      for (uint64_t number = 0; number < count; ++number) {
        const UniqueFd fd = std::move(open_entries(directory, "entry" + std::to_string(number) + "-", 1)[0]);
        if (scans)
          sink = sink + scan_entry(fd.get(), entry_bytes);
        else
          read_entry(fd.get(), entry_bytes, piece);
      }
    };
    uint64_t begin_ns = now_ns();
    for (uint64_t number = 0; number < count; ++number)
      store_entries(directory, "entry" + std::to_string(number) + "-", 1, payload(entry_bytes));
    if (act == Act::kStore) return rate(entry_bytes * count, begin_ns);
    if (again) use();
    begin_ns = now_ns();
    use();
    return rate(entry_bytes * count, begin_ns);
  };
}

void rows_of(Bench& bench, const std::string& kernel, const std::string& directory,
             const std::string& plain) {
  struct Case {
    const char* what;
    Act act;
    double bound;
  };
  for (const uint64_t entry_bytes : {2 * kMiB, 32 * kMiB}) {
    const uint64_t count = std::max<uint64_t>(bench.scale.working_set_bytes / 4 / entry_bytes, 1);
    for (const Case& row :
         {Case{"create, write, close, rename of", Act::kStore, 1},
          Case{"open, read whole, close of", Act::kRead, 1}, Case{"the same again of", Act::kReadAgain, 1},
          Case{"open, read in 64 KiB, close of", Act::kReadSmall, 0},
          Case{"open, map and scan of", Act::kScan, 1},
          Case{"the same again (mapped) of", Act::kScanAgain, 1}}) {
      const Rates rates =
          Rates::measure(bench.scale.rounds, {contestant(directory, entry_bytes, count, row.act),
                                              contestant(plain, entry_bytes, count, row.act)});
      bench.report.add({fmt::format("daemon I/O, {}: {} {} MiB", kernel, row.what, entry_bytes / kMiB),
                        "plain tmpfs", gigabytes(rates.median_of(0)), gigabytes(rates.median_of(1)),
                        rates.ratio(0, 1), row.bound > 0 ? Row::Bound::kAtLeast : Row::Bound::kNone,
                        row.bound});
    }
  }
}

}  // namespace

void daemon_io_rows(Bench& bench) {
  const std::string size = "size=" + std::to_string(bench.scale.working_set_bytes + 256 * kMiB);
  const Tmpfs plain(bench.work, "daemon-io-plain", "huge=never," + size);
  {
    const Kvcachefs ours(bench.work, "daemon-io", size, Transport::kDaemonIo);
    rows_of(bench, "Linux 6.6 on", ours.directory(), plain.directory());
  }
  const std::string faults = bench.work.make("daemon-io-faults") + "/faults";
  write_text(faults, "failing map what bypasses the page cache 95\n");
  ::setenv("KVCACHEFS_FAULT_FILE", faults.c_str(), 1);
  const Kvcachefs before(bench.work, "daemon-io-before", size, Transport::kDaemonIo);
  ::unsetenv("KVCACHEFS_FAULT_FILE");
  rows_of(bench, "before 6.6", before.directory(), plain.directory());
}

}  // namespace kvcachefs::bench
