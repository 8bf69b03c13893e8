// Opens in one pool while more writers wait for the room of another than there are threads that take
// requests. All memory of that other pool is in a file that is open for writing, so that each of its writes
// waits until the daemon has found that nothing can leave, and fails.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr unsigned kWriters = 32;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kWriteBytes = 4096;

UniqueFd open_writer(const std::string& path) {
  return UniqueFd(
      static_cast<int>(must(::open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0644), "open", path)));
}

// While it lives, the writers write.
class Load {
 public:
  explicit Load(const std::string& directory) : full_(open_writer(directory + "/full")) {
    while (::write(full_.get(), payload(kMiB).data(), kMiB) > 0) continue;
    for (unsigned writer = 0; writer < kWriters; ++writer)
      files_.push_back(open_writer(fmt::format("{}/writer{}", directory, writer)));
    for (const UniqueFd& file : files_) {
      writers_.emplace_back([this, fd = file.get()] {
        while (!stopping_) waits_ += ::pwrite(fd, payload(kMiB).data(), kWriteBytes, 0) < 0 ? 1 : 0;
      });
    }
    while (waits_ < kWriters) ::usleep(1000);
  }
  ~Load() { stopping_ = true; }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

 private:
  const UniqueFd full_;
  std::vector<UniqueFd> files_;
  std::atomic<bool> stopping_ = false;
  std::atomic<uint64_t> waits_ = 0;
  std::vector<std::jthread> writers_;
};

struct Latency {
  std::vector<double> median_us, p99_us;  // of each round
};

void open_and_close(const std::string& path, uint64_t operations, Latency& latency) {
  std::vector<uint64_t> taken_ns;
  for (uint64_t operation = 0; operation < operations; ++operation) {
    throw_if_stopped();
    const uint64_t begin_ns = now_ns();
    const int fd = static_cast<int>(must(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open", path));
    ::close(fd);
    taken_ns.push_back(now_ns() - begin_ns);
  }
  std::ranges::sort(taken_ns);
  latency.median_us.push_back(static_cast<double>(taken_ns[taken_ns.size() / 2]) / 1000);
  latency.p99_us.push_back(static_cast<double>(taken_ns[taken_ns.size() * 99 / 100]) / 1000);
}

void add_row(Bench& bench, const std::string& figure, const std::vector<double>& with,
             const std::vector<double>& without) {
  std::vector<double> ratios;
  for (size_t round = 0; round < with.size(); ++round) ratios.push_back(with[round] / without[round]);
  bench.report.add(
      {fmt::format("open and close, {}, while {} writers of another pool wait", figure, kWriters),
       "the same without them", fmt::format("{:.1f} µs", median(with)),
       fmt::format("{:.1f} µs", median(without)), median(ratios), Row::Bound::kAtMost, 1.5});
}

}  // namespace

void waiting_rows(Bench& bench) {
  const Kvcachefs ours(bench.work, "waiting", "size=64M");
  const std::string other = ours.directory() + "/../other";
  must(::mkdir(other.c_str(), 0755), "mkdir", other);
  store_entries(other, "entry", 1, payload(64 << 10));
  const std::string entry = other + "/entry0";
  Latency without, with, warm_up;
  open_and_close(entry, bench.scale.operations, warm_up);
  for (unsigned round = 0; round < bench.scale.rounds; ++round) {
    open_and_close(entry, bench.scale.operations, without);
    const Load load(ours.directory());
    open_and_close(entry, bench.scale.operations, with);
  }
  add_row(bench, "median", with.median_us, without.median_us);
  add_row(bench, "p99", with.p99_us, without.p99_us);
}

}  // namespace kvcachefs::bench
