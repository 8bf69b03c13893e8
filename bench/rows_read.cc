// Reads through the mount beside the same files on a tmpfs with huge pages and on one without.
#include <fmt/format.h>

#include <sstream>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kOurs = 0;
constexpr size_t kHuge = 1;
constexpr size_t kPlain = 2;

struct Places {
  explicit Places(Bench& bench)
      : size(std::to_string(2 * bench.scale.working_set_bytes + 64 * kMiB)),
        ours(bench.work, "read", "size=" + size),
        huge(bench.work, "read-huge", "huge=within_size,size=" + size),
        plain(bench.work, "read-plain", "huge=never,size=" + size),
        directories{ours.directory(), huge.directory(), plain.directory()} {}

  std::string size;
  Kvcachefs ours;
  Tmpfs huge;
  Tmpfs plain;
  std::vector<std::string> directories;
};

enum class Access { kRead, kOpenAndRead, kScan };

Contestant reader(const std::string& directory, const std::vector<UniqueFd>& fds, uint64_t entry_bytes,
                  size_t count, uint64_t repeats, Access access) {
  return [=, &fds] {
    volatile uint64_t sink = 0;
    const std::span<std::byte> piece = payload(kMiB);
    const uint64_t begin_ns = now_ns();
    for (uint64_t repeat = 0; repeat < repeats; ++repeat) {
      for (size_t number = 0; number < count; ++number) {
        switch (access) {
          case Access::kRead:
            read_entry(fds[number].get(), entry_bytes, piece);
            break;
          case Access::kOpenAndRead:
            read_entry(open_entries(directory, "entry" + std::to_string(number) + "-", 1)[0].get(),
                       entry_bytes, piece);
            break;
          case Access::kScan:
            sink = sink + scan_entry(fds[number].get(), entry_bytes);
            break;
        }
      }
    }
    return rate(entry_bytes * count * repeats, begin_ns);
  };
}

struct Case {
  std::string what;
  uint64_t entry_bytes;
  uint64_t set_bytes;
  Access access;
  bool bounded;
  bool against_plain;
};

void add_rows(Bench& bench, const Case& row, const Rates& rates) {
  const auto bound = row.bounded ? Row::Bound::kAtLeast : Row::Bound::kNone;
  bench.report.add({row.what, "huge tmpfs", gigabytes(rates.median_of(kOurs)),
                    gigabytes(rates.median_of(kHuge)), rates.ratio(kOurs, kHuge), bound, 0.95});
  if (!row.against_plain) return;
  bench.report.add({row.what, "plain tmpfs", gigabytes(rates.median_of(kOurs)),
                    gigabytes(rates.median_of(kPlain)), rates.ratio(kOurs, kPlain), bound, 2.5});
}

std::vector<Case> cases_of(const Scale& scale, uint64_t entry_bytes) {
  const std::string entries = fmt::format("of {} MiB entries", entry_bytes / kMiB);
  const std::string large = fmt::format("{}, {} MiB in all", entries, scale.working_set_bytes / kMiB);
  const std::string small = fmt::format("{}, {} MiB in all", entries, scale.small_set_bytes / kMiB);
  std::vector<Case> cases = {
      {"read in 1 MiB pieces " + large, entry_bytes, scale.working_set_bytes, Access::kRead, true, true},
      {"read in 1 MiB pieces " + small, entry_bytes, scale.small_set_bytes, Access::kRead, false, true},
      {"open, read, close " + large, entry_bytes, scale.working_set_bytes, Access::kOpenAndRead, false,
       true}};
  if (entry_bytes == 32 * kMiB) {
    cases.push_back({"mmap scan " + large, entry_bytes, scale.working_set_bytes, Access::kScan, true, false});
  }
  return cases;
}

// Because a file keeps the pages of the host that it got, the entries are stored anew a few times: otherwise
// the same pages would be in all rounds.
void rows_for(Bench& bench, const Places& places, uint64_t entry_bytes) {
  constexpr unsigned kGenerations = 3;
  const uint64_t count = bench.scale.working_set_bytes / entry_bytes;
  const std::vector<Case> cases = cases_of(bench.scale, entry_bytes);
  std::vector<Rates> rates(cases.size());
  for (unsigned generation = 0; generation < kGenerations; ++generation) {
    std::vector<std::vector<UniqueFd>> fds;
    for (const std::string& directory : places.directories) {
      std::vector<UniqueFd>& own = fds.emplace_back();
      for (uint64_t number = 0; number < count; ++number) {
        const std::string prefix = "entry" + std::to_string(number) + "-";
        store_entries(directory, prefix, 1, payload(entry_bytes));
        own.push_back(std::move(open_entries(directory, prefix, 1)[0]));
      }
    }
    for (size_t index = 0; index < cases.size(); ++index) {
      const Case& row = cases[index];
      std::vector<Contestant> contestants;
      for (size_t place = 0; place < places.directories.size(); ++place) {
        contestants.push_back(reader(places.directories[place], fds[place], entry_bytes,
                                     row.set_bytes / entry_bytes,
                                     bench.scale.working_set_bytes / row.set_bytes, row.access));
      }
      rates[index].append(Rates::measure(std::max(bench.scale.rounds / kGenerations, 1u), contestants));
    }
    fds.clear();
    const bool last = generation + 1 == kGenerations && entry_bytes == 32 * kMiB;
    for (const std::string& directory : places.directories) {
      for (uint64_t number = 0; number < count && !last; ++number) {
        remove_entries(directory, "entry" + std::to_string(number) + "-", 1);
      }
    }
  }
  for (size_t index = 0; index < cases.size(); ++index) add_rows(bench, cases[index], rates[index]);
}

void huge_share_row(Bench& bench, const Places& places) {
  std::istringstream lines(read_text(places.ours.control("numa")));
  double bytes = 0;
  double huge_bytes = 0;
  std::string word;
  for (double node = 0, node_bytes = 0, node_huge = 0;
       lines >> word >> node >> word >> node_bytes >> word >> node_huge;) {
    bytes += node_bytes;
    huge_bytes += node_huge;
  }
  bench.report.add({"bytes in huge pages, entries of 2 and 32 MiB", "all bytes",
                    gigabytes(huge_bytes).substr(0, 7), gigabytes(bytes).substr(0, 7),
                    bytes > 0 ? huge_bytes / bytes : 0, Row::Bound::kAtLeast, 0.9});
}

}  // namespace

void read_rows(Bench& bench) {
  const Places places(bench);
  rows_for(bench, places, 2 * kMiB);
  rows_for(bench, places, 32 * kMiB);
  // The 32 MiB entries of the last generation still exist; entries of 2 MiB are added.
  store_entries(places.ours.directory(), "small", bench.scale.working_set_bytes / 2 / (2 * kMiB),
                payload(2 * kMiB));
  huge_share_row(bench, places);
}

}  // namespace kvcachefs::bench
