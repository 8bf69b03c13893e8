// What users have today beside what they get: the calls of vLLM's `fs` tier on a pool with a disk tier, and
// on a directory of the file system that has the pool's disk tier. The keys, asked for by Zipf's law, are
// three times as many bytes as the pool has memory.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <filesystem>
#include <optional>
#include <random>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "bench/entries.h"
#include "bench/spill_pool.h"
#include "tests/clients/calls.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kEntryBytes = uint64_t{2} << 20;
constexpr double kZipf = 0.9;
constexpr unsigned kThreads = 8;
constexpr uint64_t kSeed = 9;

std::vector<uint64_t> zipf_requests(uint64_t keys, uint64_t count, uint64_t seed) {
  std::vector<double> weights(keys);
  for (uint64_t rank = 0; rank < keys; ++rank)
    weights[rank] = 1 / std::pow(static_cast<double>(rank + 1), kZipf);
  std::discrete_distribution<uint64_t> law(weights.begin(), weights.end());
  std::mt19937_64 random(seed);
  std::vector<uint64_t> requests(count);
  for (uint64_t& key : requests) key = law(random) * 0x9e3779b97f4a7c15;
  return requests;
}

struct Served {
  double bytes_a_second = 0;
  double hit_share = 0;
};

// A request is a probe, then a load if the entry exists or a store if it does not. True if it existed.
bool serve(clients::Client& client, uint64_t key, std::span<std::byte> bytes) {
  size_t found = 0;
  clients::Outcome outcome = client.probe(std::span(&key, 1), found);
  if (outcome.done() && found == 1) outcome = client.load(key, bytes);
  const bool hit = outcome.done() && found == 1;
  if (outcome.missed() || (outcome.done() && !hit)) outcome = client.store(key, payload(kEntryBytes));
  if (outcome.failed()) throw BenchError(outcome.reason);
  return hit;
}

Served serve_all(clients::Client& client, const std::vector<uint64_t>& requests) {
  std::atomic<size_t> next = 0;
  std::atomic<uint64_t> hits = 0;
  Mutex mutex;
  std::optional<BenchError> failure;
  const uint64_t begin_ns = now_ns();
  {
    std::vector<std::jthread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        const clients::Buffer buffer(kEntryBytes);
        try {
          for (size_t at; (at = next++) < requests.size();)
            hits += serve(client, requests[at], buffer.span()) ? 1 : 0;
        } catch (const BenchError& error) {
          const MutexLock lock(mutex);
          failure = error;
          next = requests.size();
        }
      });
    }
  }
  if (failure) throw *failure;
  return {rate(requests.size() * kEntryBytes, begin_ns),
          static_cast<double>(hits) / static_cast<double>(requests.size())};
}

using MakeClient = std::unique_ptr<clients::Client> (*)(const clients::ClientOptions&);

// The first half of the requests fills the place; after it the page cache is emptied.
Served measure(MakeClient make, const std::string& root, uint64_t keys) {
  const auto client = make({.root = root, .entry_bytes = kEntryBytes});
  if (const clients::Outcome started = client->start(); !started.done()) throw BenchError(started.reason);
  serve_all(*client, zipf_requests(keys, 2 * keys, kSeed));
  throw_if_stopped();
  ::sync();
  write_text("/proc/sys/vm/drop_caches", "1\n");
  return serve_all(*client, zipf_requests(keys, 2 * keys, kSeed + 1));
}

std::string text_of(const Served& served) {
  return fmt::format("{}, {:.1f} % hits", gigabytes(served.bytes_a_second), 100 * served.hit_share);
}

}  // namespace

void today_rows(Bench& bench) {
  const uint64_t memory_bytes = bench.scale.fill_pool_bytes;
  const uint64_t keys = 3 * memory_bytes / kEntryBytes;
  struct Case {
    const char* calls;
    MakeClient make;
  };
  payload(kEntryBytes);
  for (const Case& one :
       {Case{"O_DIRECT", clients::make_vllm_direct}, Case{"buffered", clients::make_vllm_buffered}}) {
    const DiskDirectory disk;
    Served ours;
    {
      const SpillPool pool(
          bench, disk, fmt::format("today-{}", one.calls),
          {.memory_bytes = memory_bytes, .disk_bytes = 4 * memory_bytes, .options = "prefetch=on"});
      ours = measure(one.make, pool.directory(), keys);
    }
    const std::string plain = disk.path() + "/plain";
    std::filesystem::create_directory(plain);
    const Served theirs = measure(one.make, plain, keys);
    bench.report.add({fmt::format("vLLM's calls, {}, entries of 2 MiB, three times {} MiB of memory, Zipf {}",
                                  one.calls, memory_bytes >> 20, kZipf),
                      "directory on ext4", text_of(ours), text_of(theirs),
                      ours.bytes_a_second / theirs.bytes_a_second, Row::Bound::kNone, 0});
  }
}

}  // namespace kvcachefs::bench
