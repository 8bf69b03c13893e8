// Four writers store four times the pool's size as fast as they can. No store may fail or be short, the pool
// may not grow, and the writers should not notice the eviction.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/mountinfo.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr unsigned kWriters = 4;
constexpr uint64_t kTimes = 4;
constexpr uint64_t kEntryBytes = uint64_t{2} << 20;
constexpr useconds_t kSampleUs = 2000;

// The result is the tmpfs in which the daemon keeps the pool: the bytes used there are what the pool really
// takes.
std::string memory_of(const Kvcachefs& mount) {
  for (const MountPoint& each : read_mounts().value_or(std::vector<MountPoint>()))
    if (each.type == "tmpfs" && each.directory.starts_with(mount.runtime_dir() + "/")) return each.directory;
  throw BenchError("no tmpfs below " + mount.runtime_dir());
}

uint64_t used_bytes(const std::string& path) {
  struct statvfs space {};
  must(::statvfs(path.c_str(), &space), "statvfs", path);
  return (space.f_blocks - space.f_bfree) * space.f_frsize;
}

struct Fill {
  uint64_t failures = 0;
  uint64_t peak_bytes = 0;
  uint64_t wall_ns = 0;
};

bool store_whole(const std::string& path, std::span<const std::byte> bytes) {
  const std::string temporary = path + ".tmp";
  UniqueFd fd(::open(temporary.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_TRUNC | O_CLOEXEC, 0644));
  if (!fd) return false;
  const bool whole = ::write(fd.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size());
  const bool closed = ::close(fd.release()) == 0;
  return whole && closed && ::rename(temporary.c_str(), path.c_str()) == 0;
}

Fill fill(const std::string& directory, const std::string& memory, uint64_t entries_each) {
  std::atomic<uint64_t> failures = 0;
  std::atomic<unsigned> running = kWriters;
  Fill result;
  const uint64_t begin_ns = now_ns();
  {
    std::vector<std::jthread> writers;
    for (unsigned writer = 0; writer < kWriters; ++writer) {
      writers.emplace_back([&, writer] {
        for (uint64_t number = 0; number < entries_each; ++number) {
          const std::string path = fmt::format("{}/writer{}-{}", directory, writer, number);
          if (!store_whole(path, payload(kEntryBytes))) ++failures;
        }
        --running;
      });
    }
    while (running > 0) {
      result.peak_bytes = std::max(result.peak_bytes, used_bytes(memory));
      ::usleep(kSampleUs);
    }
  }
  result.wall_ns = now_ns() - begin_ns;
  result.failures = failures;
  return result;
}

}  // namespace

void fill_rows(Bench& bench) {
  const uint64_t pool_bytes = bench.scale.fill_pool_bytes;
  const Kvcachefs ours(bench.work, "fill", "size=" + std::to_string(pool_bytes));
  payload(kEntryBytes);
  const Fill result = fill(ours.directory(), memory_of(ours), pool_bytes * kTimes / kEntryBytes / kWriters);
  const double over_bytes =
      result.peak_bytes > pool_bytes ? static_cast<double>(result.peak_bytes - pool_bytes) : 0;
  const double wait_share =
      ours.pool_stat("reservation_wait_ns") / (static_cast<double>(result.wall_ns) * kWriters);
  const std::string what = "four writers, four times the pool: ";
  const std::string speed =
      gigabytes(static_cast<double>(pool_bytes * kTimes) * 1e9 / static_cast<double>(result.wall_ns));
  bench.report.add({what + "failed or short writes", "", speed, "", static_cast<double>(result.failures),
                    Row::Bound::kAtMost, 0});
  bench.report.add({what + "bytes above the pool's size at the peak", "",
                    fmt::format("peak {} MiB", result.peak_bytes >> 20),
                    fmt::format("size {} MiB", pool_bytes >> 20), over_bytes, Row::Bound::kAtMost, 0});
  bench.report.add({what + "time in eviction waits", "writers' time",
                    fmt::format("{:.0f} waits, {:.0f} discards", ours.pool_stat("reservation_waits"),
                                ours.pool_stat("discards")),
                    "", wait_share, Row::Bound::kAtMost, 0.05});
}

}  // namespace kvcachefs::bench
