// A catalog of many entries: how fast batches of them are committed, and how soon a mount serves them.
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "alloc/memory_arena.h"
#include "base/clock.h"
#include "bench/spill_pool.h"
#include "bench/takeover.h"
#include "tier/catalog/catalog.h"
#include "tier/disk/spill_orders.h"
#include "tier/disk/spill_target.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kUnitBytes = 4096;
constexpr uint64_t kBatch = 4096;
constexpr uint64_t kFirstId = 2;

template <class Value>
Value must_have(Result<Value> result) {
  if (!result) throw BenchError(result.error().message);
  return std::move(*result);
}

// The disk is not full, because a pool keeps up to a 32nd of its disk free and would discard entries for
// that.
uint64_t disk_bytes(uint64_t entries) {
  return (entries + entries / 8 + 256) * kUnitBytes;
}

// The names are like those of engines: a hash in hexadecimal digits, all in one directory.
void add_entry(std::vector<CatalogChange>& batch, uint64_t number) {
  const uint64_t id = kFirstId + number;
  const uint64_t hash = id * 0x9e3779b97f4a7c15;
  CatalogNode node;
  node.id = id;
  node.mode = S_IFREG | 0644;
  node.accessed = node.modified = {1'700'000'000 + static_cast<time_t>(number / 1000), 5};
  batch.emplace_back(PutNode{std::move(node)});
  batch.emplace_back(PutName{kCatalogRoot, fmt::format("{:016x}{:016x}.safetensors", hash, ~hash), id});
  // Unit 0 belongs to the superblock.
  batch.emplace_back(PutContent{
      id, {.size_bytes = kUnitBytes, .checksum = {hash, id}, .version = 1, .extents = {{number + 1, 1}}}});
}

// The call makes a disk and its catalog as a daemon would leave them. The result is in entries a second.
double commit_all(const std::string& path, uint64_t entries) {
  const SpillTarget target = must_have(
      open_spill_target({.path = path, .size_bytes = disk_bytes(entries), .unit_bytes = kUnitBytes}));
  const auto catalog = must_have(Catalog::open(path + ".catalog"));
  std::string uuid(target.uuid.size(), '\0');
  std::memcpy(uuid.data(), target.uuid.data(), uuid.size());
  if (auto put = catalog->put_setting(kSpillUuidSetting, uuid); !put) throw BenchError(put.error().message);
  const uint64_t begin_ns = now_ns();
  for (uint64_t number = 0; number < entries;) {
    std::vector<CatalogChange> batch;
    batch.reserve(kBatch * 3);
    for (const uint64_t end = std::min(number + kBatch, entries); number < end; ++number)
      add_entry(batch, number);
    must_have(catalog->commit(batch));
  }
  return rate(entries, begin_ns);
}

}  // namespace

void catalog_rows(Bench& bench) {
  const DiskDirectory disk;
  const uint64_t entries = bench.scale.directory_entries;
  const std::string path = disk.path() + "/million";
  const double committed = commit_all(path, entries);
  bench.report.add({fmt::format("catalog: entries committed a second, {} in batches of {}", entries, kBatch),
                    "", fmt::format("{:.2f} µs an entry", 1e6 / committed), "", committed,
                    Row::Bound::kAtLeast, 50'000});
  std::vector<double> served, seconds;
  TakeoverTimes taken_over;
  const uint64_t size_bytes = std::max(least_size_for_inodes(entries + entries / 4), uint64_t{1} << 30);
  for (unsigned round = 0; round < std::min(bench.scale.rounds, 3u); ++round) {
    const uint64_t begin_ns = now_ns();
    const Kvcachefs ours(bench.work, fmt::format("start-{}", round),
                         fmt::format("size={},spill={},spill_size={},spill_unit={}", size_bytes, path,
                                     disk_bytes(entries), kUnitBytes));
    served.push_back(1 / rate(1, begin_ns));
    while (ours.pool_stat("cold_entries") < static_cast<double>(entries)) {
      throw_if_stopped();
      ::usleep(1000);
      if (now_ns() - begin_ns > 300'000'000'000) throw BenchError("the entries are not back");
    }
    seconds.push_back(1 / rate(1, begin_ns));
    if (round == 0) taken_over = kill_serving_process(ours);
  }
  bench.report.add(
      {fmt::format("start of a mount with {} entries on its disk, seconds until it serves", entries), "", "",
       "", median(served), Row::Bound::kAtMost, 1});
  bench.report.add(
      {fmt::format("start of a mount with {} entries on its disk, seconds until all are there", entries), "",
       "", "", median(seconds), Row::Bound::kAtMost, 20});
  const auto takeover = [&](const char* what, double figure, Row::Bound bound, double limit) {
    bench.report.add({fmt::format("takeover with {} entries on the disk: {}", entries, what), "", "", "",
                      figure, bound, limit});
  };
  takeover("longest wait of opens of what is in memory, ms", taken_over.longest_open_ms, Row::Bound::kAtMost,
           150);
  takeover("seconds until a store", taken_over.store_s, Row::Bound::kNone, 0);
  takeover("longest wait of opens of what is on the disk, ms", taken_over.longest_cold_open_ms,
           Row::Bound::kAtMost, 150);
}

}  // namespace kvcachefs::bench
