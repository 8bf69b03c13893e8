// The whole trace of a chat service, replayed by vLLM's calls, in a pool that holds a tenth of its blocks.
#include <fmt/format.h>

#include "bench/rows.h"
#include "tests/clients/replay.h"

namespace kvcachefs::bench {

void trace_rows(Bench& bench) {
  constexpr uint64_t kBlockBytes = 65536;
  const std::string path = clients::trace_path(KVCACHEFS_SOURCE_DIR);
  const Result<clients::Trace> trace = clients::read_trace(path, bench.scale.trace_requests);
  if (!trace) {
    bench.report.note("No trace row: " + trace.error().message + ".");
    return;
  }
  const uint64_t pool_bytes = std::max(trace->unique_blocks * kBlockBytes / 10, uint64_t{16} << 20);
  const Kvcachefs ours(bench.work, "trace", "policy=lru,size=" + std::to_string(pool_bytes));
  const clients::ReplayResult result =
      clients::replay(*trace, {.root = ours.directory(), .block_bytes = kBlockBytes});
  if (!result.failures.empty()) throw BenchError("trace: " + result.failures[0]);
  const auto speed = [&](uint64_t blocks, uint64_t ns) {
    return gigabytes(static_cast<double>(blocks * kBlockBytes) * 1e9 /
                     static_cast<double>(std::max<uint64_t>(ns, 1)));
  };
  bench.report.add(
      {fmt::format("trace of {} requests, pool of a tenth: share of blocks read", trace->requests.size()), "",
       fmt::format("read {}, stored {}, {:.0f} s", speed(result.reads, result.times.read_ns),
                   speed(result.stores, result.times.store_ns), static_cast<double>(result.wall_ns) * 1e-9),
       "", static_cast<double>(result.reads) / static_cast<double>(trace->references)});
}

}  // namespace kvcachefs::bench
