// The speed at which dirty entries are spilled, beside fio's sequential writes, and the effect of spilling on
// clients' reads.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <thread>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/spill_pool.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

// The call stores entries that stay dirty, because the pool's durability is `none`.
void store_dirty(const SpillPool& pool, uint64_t entries, uint64_t entry_bytes) {
  remove_entries(pool.directory(), "spilled", entries);
  pool.set_durability("none");
  store_entries(pool.directory(), "spilled", entries, payload(entry_bytes));
}

double spill_rate(const SpillPool& pool, uint64_t entries, uint64_t entry_bytes) {
  store_dirty(pool, entries, entry_bytes);
  const uint64_t begin_ns = now_ns();
  pool.set_durability("writeback");
  pool.wait_until_clean();
  return rate(entries * entry_bytes, begin_ns);
}

SpillPool::Shape shape_for(uint64_t bytes) {
  // The disk has room for two rounds, so that a round's writes do not need space that was freed just before.
  return {.memory_bytes = bytes / 4 * 5 + 64 * kMiB, .disk_bytes = bytes / 4 * 9 + 64 * kMiB};
}

void throughput_row(Bench& bench, const DiskDirectory& disk, uint64_t entry_bytes) {
  const uint64_t bytes = std::max(bench.scale.working_set_bytes, (bench.scale.quick ? 64 : 256) * kMiB);
  const uint64_t entries = bytes / entry_bytes;
  const std::string fios = disk.make_file(fmt::format("fio-{}", entry_bytes), bytes);
  const Tmpfs memory(bench.work, fmt::format("spill-pages-{}", entry_bytes),
                     fmt::format("huge=within_size,size={}", 8 * entry_bytes + 64 * kMiB));
  const SpillPool pool(bench, disk, fmt::format("spill-{}", entry_bytes), shape_for(bytes));
  const FioJob plain{FioJob::Kind::kWrite, fios, bytes, entry_bytes, 8};
  FioJob huge = plain;
  huge.pages = make_pages(memory, 8 * entry_bytes + 2 * kMiB);
  store_entries(pool.directory(), "spilled", entries, payload(entry_bytes));
  pool.wait_until_clean();
  const Rates rates = Rates::measure(disk_rounds(bench.scale),
                                     {[&] { return spill_rate(pool, entries, entry_bytes); },
                                      [&] { return fio_rate(huge); }, [&] { return fio_rate(plain); }});
  const std::vector<std::string> against = {"fio write and flush, huge pages", "fio write and flush"};
  for (size_t index = 0; index < against.size(); ++index)
    bench.report.add({fmt::format("spill entries of {} MiB, all durable", entry_bytes / kMiB), against[index],
                      gigabytes(rates.median_of(0)), gigabytes(rates.median_of(index + 1)),
                      rates.ratio(0, index + 1), Row::Bound::kAtLeast, 0.9});
}

// Open entries are read over and over, until `enough` is true; it is asked after each round over all entries.
double hot_rate(const std::vector<UniqueFd>& entries, uint64_t entry_bytes,
                const std::function<bool(uint64_t)>& enough) {
  static std::vector<std::byte> piece(kMiB);
  uint64_t bytes = 0;
  const uint64_t begin_ns = now_ns();
  do {
    throw_if_stopped();
    for (const UniqueFd& entry : entries) read_entry(entry.get(), entry_bytes, piece);
    bytes += entries.size() * entry_bytes;
  } while (!enough(now_ns() - begin_ns));
  return rate(bytes, begin_ns);
}

// The rate shows what the disk alone costs: the same reads while fio writes, which makes no checksums and
// reads nothing with a processor.
double beside_fio(const std::vector<UniqueFd>& hot, uint64_t entry_bytes, const FioJob& job) {
  std::atomic<bool> ended = false;
  std::exception_ptr failure;
  std::thread writer([&] {
    try {
      (void)fio_rate(job);
    } catch (...) {
      failure = std::current_exception();
    }
    ended = true;
  });
  double result = 0;
  try {
    result = hot_rate(hot, entry_bytes, [&](uint64_t) { return ended.load(); });
  } catch (...) {
    failure = std::current_exception();
  }
  writer.join();
  if (failure) std::rethrow_exception(failure);
  return result;
}

void hot_row(Bench& bench, const DiskDirectory& disk) {
  const uint64_t entry_bytes = 2 * kMiB;
  const uint64_t bytes = 2 * std::max(bench.scale.working_set_bytes, 128 * kMiB);
  const uint64_t hot_entries = bench.scale.small_set_bytes / entry_bytes;
  const Tmpfs memory(bench.work, "hot-pages", fmt::format("huge=within_size,size={}", 80 * kMiB));
  const FioJob fio{FioJob::Kind::kWrite,
                   disk.make_file("beside-hot", bytes),
                   bytes,
                   entry_bytes,
                   8,
                   make_pages(memory, 8 * entry_bytes + 2 * kMiB)};
  SpillPool::Shape shape = shape_for(bytes + hot_entries * entry_bytes);
  const SpillPool pool(bench, disk, "hot", shape);
  store_entries(pool.directory(), "hot", hot_entries, payload(entry_bytes));
  store_entries(pool.directory(), "spilled", bytes / entry_bytes, payload(entry_bytes));
  pool.wait_until_clean();
  const auto hot = open_entries(pool.directory(), "hot", hot_entries);
  uint64_t spilling_ns = 500'000'000;
  const Rates rates =
      Rates::measure(disk_rounds(bench.scale), {[&] {
                                                  store_dirty(pool, bytes / entry_bytes, entry_bytes);
                                                  pool.set_durability("writeback");
                                                  return hot_rate(hot, entry_bytes, [&](uint64_t past_ns) {
                                                    spilling_ns = past_ns;
                                                    return pool.is_clean();
                                                  });
                                                },
                                                [&] {
                                                  // The reads alone ask the same question, because its answer
                                                  // costs a moment.
                                                  return hot_rate(hot, entry_bytes, [&](uint64_t past_ns) {
                                                    return pool.is_clean() && past_ns > spilling_ns;
                                                  });
                                                },
                                                [&] { return beside_fio(hot, entry_bytes, fio); }});
  const std::string what = "reads of 1 MiB of open entries while all else is spilled";
  bench.report.add({what, "the same reads alone", gigabytes(rates.median_of(0)),
                    gigabytes(rates.median_of(1)), rates.ratio(0, 1), Row::Bound::kAtLeast, 0.9});
  bench.report.add({what, "the same reads beside fio's writes", gigabytes(rates.median_of(0)),
                    gigabytes(rates.median_of(2)), rates.ratio(0, 2)});
}

}  // namespace

void spill_speed_rows(Bench& bench) {
  const DiskDirectory disk;
  throughput_row(bench, disk, 2 * kMiB);
  throughput_row(bench, disk, 32 * kMiB);
  hot_row(bench, disk);
}

}  // namespace kvcachefs::bench
