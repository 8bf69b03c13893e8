#include "tests/soak/sampler.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "tests/support/files.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::soak {
namespace {

using test::kMiB;

constexpr uint64_t kFreeInodes = 4096;  // kvcachefsd(8), DIRECTORIES: they count nothing
constexpr uint64_t kInodeBytes = 1856;
constexpr int kLooks = 10;
// A count is read while calls in hand change it: one each.
constexpr uint64_t kCallsInHand = kClients;
// Each descriptor of the daemon beyond its own is of a file that a client has open, or that a call in hand
// looks at: kDescriptors of client.cc each.
constexpr uint64_t kDaemonDescriptors = 512 + kClients * 2048;
// What the daemon keeps itself: some hundred bytes an entry and a name, the catalog's queue, and what of the
// memory is fragmented. A leak of a kilobyte a call would be above it within minutes.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)  // they keep freed memory
constexpr uint64_t kServerBytes = 8192 * kMiB;
#else
constexpr uint64_t kServerBytes = 256 * kMiB;
#endif
constexpr uint64_t kSupervisorBytes = kServerBytes / 8;
constexpr uint64_t kCatalogBytes = 256 * kMiB;

uint64_t anonymous_bytes(pid_t pid) {
  std::string text;
  if (pid <= 0 || test::load("/proc/" + std::to_string(pid) + "/status", &text) != 0) return 0;
  const size_t at = text.find("RssAnon:");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + 8, nullptr, 10) * 1024;
}

uint64_t descriptors_of(pid_t pid) {
  std::error_code error;
  const std::filesystem::directory_iterator all("/proc/" + std::to_string(pid) + "/fd", error);
  return error ? 0 : static_cast<uint64_t>(std::distance(begin(all), end(all)));
}

uint64_t allocated_bytes(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 ? static_cast<uint64_t>(status.st_blocks) * 512 : 0;
}

}  // namespace

void Sampler::at_most(const std::string& what, uint64_t value, uint64_t bound) {
  Peak& peak = peaks_[what];
  const double closeness =
      bound == 0 ? (value == 0 ? 0 : 2) : static_cast<double>(value) / static_cast<double>(bound);
  if (closeness < peak.closest || (closeness == peak.closest && peak.bound != 0)) return;
  const bool is_worse = closeness > peak.closest;
  peak = {value, bound, closeness};
  if (value > bound && is_worse)
    record_.fail("BOUND: " + what + " is " + std::to_string(value) + ", at most " + std::to_string(bound),
                 false);
}

Sampler::Stats Sampler::stats_of(const std::string& pool) {
  std::string text;
  const std::string file = mount_.control("stats", pool);
  record_.begins(kClients, Call::kReadControl);
  const int error = test::load(file, &text);
  record_.ends(kClients, Call::kReadControl, error, file);
  Stats stats;
  for (const auto& [name, value] : test::parse_stats(text))
    stats[name] = std::strtoull(value.c_str(), nullptr, 10);
  return stats;
}

// The kernel's own count.
Sampler::Usage Sampler::usage_of(const std::string& pool) const {
  Usage usage;
  for (const MountPoint& memory : test::mounts_below(mount_.runtime_dir())) {
    if (memory.type != "tmpfs" || memory.directory.find("/" + pool + ".") == std::string::npos) continue;
    struct statvfs status {};
    if (::statvfs(memory.directory.c_str(), &status) != 0) continue;
    usage = {(status.f_blocks - status.f_bfree) * status.f_frsize, status.f_files - status.f_ffree};
  }
  return usage;
}

void Sampler::check_count(const std::string& what, uint64_t count, uint64_t limit, uint64_t most) {
  Count& last = counts_[what];
  const uint64_t bound = limit == last.limit ? std::max(limit, last.count) : most;
  at_most(what, count, bound + kCallsInHand);
  last = {count, limit};
}

// A pool has its new size as soon as it begins to shrink, and what is too much leaves meanwhile. Many names
// may come and go again between the looks at the kernel's count and at the daemon's, while the statistics
// wait for a processor: what only looks like too much does not do so often in a row.
void Sampler::check_memory(const std::string& pool, uint64_t most_bytes) {
  for (int look = 1; look <= kLooks; ++look) {
    const uint64_t orders = record_.size_orders();
    const Usage before = usage_of(pool);
    const Stats stats = stats_of(pool);
    const Usage after = usage_of(pool);
    if (stats.empty()) return;
    const bool is_resized = orders % 2 != 0 || orders != record_.size_orders();
    const uint64_t size = is_resized ? most_bytes : stats.at("size_bytes");
    const uint64_t inodes = std::max(before.inodes, after.inodes);
    at_most(pool + ": bytes in its tmpfs", std::max(before.bytes, after.bytes), size);
    at_most(pool + ": pinned_bytes", stats.at("pinned_bytes"), most_bytes / 2);  // as pinned_max was at most
    at_most(pool + ": inodes of its tmpfs", inodes, kFreeInodes + most_bytes / (2 * kInodeBytes) + 16);
    // kvcachefsd(8): what clients have open may exceed the size by what the names take.
    const uint64_t counted = std::max(inodes + kCallsInHand, kFreeInodes) - kFreeInodes;
    const uint64_t used = stats.at("used_bytes"), bound = size + counted * kInodeBytes;
    if (used > bound && look < kLooks) continue;
    return at_most(pool + ": used_bytes", used, bound);
  }
}

void Sampler::check_pool(const std::string& pool, const Stats& stats) {
  if (stats.empty()) return;
  check_count(pool + ": entries", stats.at("entries"), stats.at("max_entries"), place_.most_entries);
  check_count(pool + ": directories", stats.at("directories"), stats.at("max_directories"),
              place_.most_directories);
  for (const char* const error :
       {"checksum_errors", "spill_errors", "promote_errors", "catalog_errors", "disk_failed"})
    at_most(pool + ": " + error, stats.at(error), 0);
}

void Sampler::check_disk(const Stats& stats) {
  // kvcachefsd(8): a takeover that finds the disk locked by the process before it goes on without it for a
  // while.
  if (stats.empty() || stats.at("disk_away") != 0) return;
  const uint64_t size = stats.at("spill_size_bytes");
  at_most("spill_used_bytes", stats.at("spill_used_bytes"), size);
  at_most("bytes of the spill file", allocated_bytes(spill_file_), size + kMiB);
  at_most("bytes of the catalog", allocated_bytes(spill_file_ + ".catalog/data.mdb"), kCatalogBytes);
}

void Sampler::check_daemon() {
  at_most("descriptors of the daemon", descriptors_of(mount_.pid()), kDaemonDescriptors);
  at_most("RssAnon of the serving process", anonymous_bytes(mount_.serving_pid()), kServerBytes);
  at_most("RssAnon of the supervisor", anonymous_bytes(mount_.pid()), kSupervisorBytes);
}

void Sampler::sample() {
  ++samples_;
  for (size_t i = 0; i < place_.pools.size(); ++i) {
    const Stats stats = stats_of(place_.pools[i]);
    check_pool(place_.pools[i], stats);
    check_memory(place_.pools[i], place_.pool_bytes[i]);
    if (i + 1 == place_.pools.size()) check_disk(stats);
  }
  check_daemon();
}

std::string Sampler::peaks() const {
  std::string text = std::to_string(samples_) + " samples; the closest to each bound:\n";
  std::array<char, 160> line{};
  for (const auto& [what, peak] : peaks_) {
    std::snprintf(line.data(), line.size(), "  %-36s %12lu of %12lu (%.0f %%)\n", what.c_str(), peak.value,
                  peak.bound, 100 * peak.closest);
    text += line.data();
  }
  return text;
}

}  // namespace kvcachefs::soak
