#include "bench/spill_pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <latch>
#include <numeric>
#include <optional>
#include <random>
#include <span>
#include <thread>

#include "base/clock.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kDeadlineNs = 120'000'000'000;
constexpr useconds_t kPauseUs = 1000;

void wait_for(const char* what, const std::function<bool()>& condition) {
  const uint64_t deadline_ns = now_ns() + kDeadlineNs;
  while (!condition()) {
    throw_if_stopped();
    if (now_ns() > deadline_ns) throw BenchError(fmt::format("waited in vain until {}", what));
    ::usleep(kPauseUs);
  }
}

// The buffers are in huge pages, touched once and kept, so that no round pays for the first touch.
class Buffers {
 public:
  Buffers(unsigned count, uint64_t each_bytes) : each_bytes_(each_bytes), all_bytes_(count * each_bytes) {
    at_ = ::mmap(nullptr, all_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    must(at_ == MAP_FAILED ? -1 : 0, "mmap", "buffers");
    ::madvise(at_, all_bytes_, MADV_HUGEPAGE);
    std::ranges::fill(std::span(static_cast<std::byte*>(at_), all_bytes_), std::byte{1});
  }
  ~Buffers() { ::munmap(at_, all_bytes_); }
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  std::byte* of(unsigned client) const { return static_cast<std::byte*>(at_) + client * each_bytes_; }

 private:
  uint64_t each_bytes_;
  uint64_t all_bytes_;
  void* at_ = nullptr;
};

void read_one(const std::string& path, std::byte* into, uint64_t bytes) {
  const UniqueFd fd(static_cast<int>(must(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open", path)));
  const long got = must(::read(fd.get(), into, bytes), "read", path);
  if (got != static_cast<long>(bytes)) throw BenchError("short read " + path);
}

}  // namespace

SpillPool::SpillPool(const Bench& bench, const DiskDirectory& disk, const std::string& name,
                     const Shape& shape)
    // The disk file is written once before, because the first write to space that was only allocated costs
    // the file system more.
    : mount_(bench.work, name,
             fmt::format("size={},spill={},spill_size={},spill_force=on,{}", shape.memory_bytes,
                         disk.make_file(name, shape.disk_bytes), shape.disk_bytes, shape.options)) {}

void SpillPool::set_durability(const std::string& word) const {
  write_text(mount_.control("durability"), word + "\n");
}

bool SpillPool::is_clean() const {
  return mount_.pool_stat("dirty_entries") == 0;
}

void SpillPool::wait_until_clean() const {
  wait_for("all is on the disk", [&] { return is_clean(); });
  const UniqueFd root(static_cast<int>(
      must(::open(directory().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC), "open", directory())));
  must(::fsync(root.get()), "fsync", directory());
}

void SpillPool::make_cold(uint64_t entries) const {
  wait_for("all entries are cold", [&] {
    if (mount_.pool_stat("cold_entries") >= static_cast<double>(entries)) return true;
    write_text(mount_.control("evict"), "100%\n");
    return false;
  });
}

std::string make_pages(const Tmpfs& memory, uint64_t bytes) {
  const std::string path = memory.directory() + "/pages";
  const UniqueFd fd(
      static_cast<int>(must(::open(path.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600), "open", path)));
  must(::fallocate(fd.get(), 0, 0, static_cast<off_t>(bytes)), "fallocate", path);
  return path;
}

double read_whole(const ReadJob& job) {
  const Buffers buffers(job.clients, job.entry_bytes);
  std::vector<uint64_t> order(job.entries);
  std::iota(order.begin(), order.end(), 0);
  if (job.shuffled) std::ranges::shuffle(order, std::mt19937_64(now_ns()));
  std::atomic<size_t> next = 0;
  std::latch ready(job.clients + 1);
  Mutex mutex;
  std::optional<BenchError> failure;
  std::vector<std::jthread> clients;
  for (unsigned client = 0; client < job.clients; ++client) {
    clients.emplace_back([&, client] {
      ready.arrive_and_wait();
      try {
        for (size_t at; (at = next++) < order.size();)
          read_one(job.directory + "/" + job.prefix + std::to_string(order[at]), buffers.of(client),
                   job.entry_bytes);
      } catch (const BenchError& error) {
        const MutexLock lock(mutex);
        failure = error;
      }
    });
  }
  ready.arrive_and_wait();
  const uint64_t begin_ns = now_ns();
  clients.clear();
  if (failure) throw *failure;
  return rate(job.entries * job.entry_bytes, begin_ns);
}

}  // namespace kvcachefs::bench
