// Real requests on a real mount: the first 1,000 of a chat service's trace, each block a file of 64 KiB, in a
// pool that holds a fifth of their blocks. All bytes must be right, and the hits and misses must be those of
// an lru cache.
#include <algorithm>
#include <cstdio>
#include <string>

#include "tests/clients/lru_bounds.h"
#include "tests/clients/replay.h"
#include "tests/clients/trace.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::clients {
namespace {

constexpr uint64_t kRequests = 1000;
// So many that their blocks do not fit on the disk.
constexpr uint64_t kRequestsWithADisk = 2000;
constexpr uint64_t kBlockBytes = 65536;
// The order of use may differ by this much, because the kernel reports closes late and a file being written
// takes memory too.
constexpr uint64_t kSlackBytes = 16 * kBlockBytes;

struct Bounds {
  uint64_t kept_bytes = 0;     // the least that eviction leaves
  uint64_t held_bytes = 0;     // the most that there can be
  uint64_t charged_bytes = 0;  // one entry with its metadata
};

struct Verdict {
  uint64_t demanded_hits = 0;
  uint64_t demanded_misses = 0;
  uint64_t free = 0;
  uint64_t contradictions = 0;
};

Verdict judge(const ReplayResult& result, const Bounds& bounds) {
  Verdict verdict;
  LruBounds lru(result.events.size());
  for (const ReplayEvent& event : result.events) {
    const bool present = event.event == BlockEvent::kRead || event.event == BlockEvent::kExisted;
    const size_t rank = lru.rank(event.block);
    const bool must_hit = rank != 0 && rank * bounds.charged_bytes + kSlackBytes < bounds.kept_bytes;
    const bool must_miss = rank == 0 || rank * kBlockBytes > bounds.held_bytes;
    verdict.demanded_hits += must_hit;
    verdict.demanded_misses += must_miss;
    verdict.free += !must_hit && !must_miss;
    if ((must_hit && !present) || (must_miss && present)) {
      if (verdict.contradictions++ < 5) {
        ADD_FAILURE() << "block " << event.block << " of rank " << rank
                      << (present ? " was there" : " was not there");
      }
    }
    // A block that only existed was not opened, and a late miss is stored next.
    if (event.event == BlockEvent::kRead || event.event == BlockEvent::kStored) lru.touch(event.block);
  }
  return verdict;
}

double gigabytes_a_second(uint64_t blocks, uint64_t ns) {
  return ns == 0 ? 0 : static_cast<double>(blocks * kBlockBytes) / static_cast<double>(ns);
}

void print(const ReplayResult& result, const Verdict& verdict, const Trace& trace) {
  std::printf("%zu requests, %lu references to %lu blocks, %.1f s\n", trace.requests.size(), trace.references,
              trace.unique_blocks, static_cast<double>(result.wall_ns) * 1e-9);
  std::printf("hit share %.4f; read %.2f GB/s, stored %.2f GB/s, both over all %.2f GB/s; probes %.2f s\n",
              static_cast<double>(result.reads) / static_cast<double>(trace.references),
              gigabytes_a_second(result.reads, result.times.read_ns),
              gigabytes_a_second(result.stores, result.times.store_ns),
              gigabytes_a_second(result.reads + result.stores, result.wall_ns),
              static_cast<double>(result.times.probe_ns) * 1e-9);
  std::printf("model: %lu hits demanded, %lu misses demanded, %lu free, %lu contradictions\n",
              verdict.demanded_hits, verdict.demanded_misses, verdict.free, verdict.contradictions);
}

TEST(TraceReplay, HitsAndMissesAreThoseOfLru) {
  KVCACHEFS_NEED_MOUNT();
  const std::string path = trace_path(KVCACHEFS_SOURCE_DIR);
  KVCACHEFS_SKIP_IF(test::exists(path) ? "" : "the trace " + path + " (KVCACHEFS_TRACE names another)");
  const Result<Trace> trace = read_trace(path, test::every_pool_spills() ? kRequestsWithADisk : kRequests);
  ASSERT_TRUE(trace) << trace.error().message;
  const bool evicts = test::mode() != test::Mode::kTmpfs;
  // With a disk the names of all blocks, and a directory for each, have to fit too.
  const uint64_t share = evicts ? 5 : 1;
  const uint64_t pool_bytes = trace->unique_blocks * kBlockBytes / share + (evicts ? 0 : kSlackBytes);
  test::Mount mount({.pools = {"p:policy=lru,size=" + std::to_string(pool_bytes)}});

  const ReplayResult result = replay(*trace, {.root = mount.path(), .block_bytes = kBlockBytes});
  for (const std::string& failure : result.failures) ADD_FAILURE() << failure;

  Bounds bounds{
      .kept_bytes = pool_bytes + 2 * kSlackBytes, .held_bytes = pool_bytes, .charged_bytes = kBlockBytes};
  if (evicts) {
    const uint64_t low_percent =
        std::strtoull(test::read_file(mount.control("watermarks")).c_str(), nullptr, 10);
    ASSERT_GT(low_percent, 0u);
    const auto used_bytes = static_cast<uint64_t>(mount.stat_value("used_bytes"));
    const auto entries = static_cast<uint64_t>(mount.stat_value("entries"));
    bounds.kept_bytes = pool_bytes / 100 * low_percent;
    bounds.charged_bytes = std::max(kBlockBytes, used_bytes / std::max<uint64_t>(entries, 1));
    EXPECT_LE(used_bytes, pool_bytes);
  }
  // The disk's 2 GiB (Mount::with_disk_tier) then decide which entries are kept.
  if (test::every_pool_spills()) {
    bounds.kept_bytes = uint64_t{15} << 27;  // 15/16 of it
    bounds.held_bytes = (uint64_t{2} << 30) + pool_bytes;
    bounds.charged_bytes = kBlockBytes;
  }
  const Verdict verdict = judge(result, bounds);
  print(result, verdict, *trace);
  EXPECT_EQ(verdict.contradictions, 0u);
  EXPECT_GT(verdict.demanded_hits, trace->references / 20);
  EXPECT_GE(verdict.demanded_misses, trace->unique_blocks);
  if (evicts) std::printf("%s", test::read_file(mount.control("stats")).c_str());
  if (HasFailure()) report_daemon_log(mount);
}

}  // namespace
}  // namespace kvcachefs::clients
