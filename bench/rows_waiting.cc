// Opens in one pool while the writers of another wait: more than there are threads that take requests for
// room, and some for a disk of 20 MB/s. For the first, all memory of that other pool is in a file that is
// open for writing, so that each of its writes waits until the daemon has found that nothing can leave, and
// fails.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/fio.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr unsigned kWriters = 32;
constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr size_t kWriteBytes = 4096;
constexpr unsigned kStorers = 12;
constexpr uint64_t kStoredBytes = 8 * kMiB;
constexpr uint64_t kSlowBytesPerS = 20'000'000;

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

// While it lives, the kernel slows the daemon's writes to the disk (cgroup v1, Linux
// Documentation/admin-guide/cgroup-v1/blkio-controller.rst).
class SlowDisk {
 public:
  SlowDisk(const WorkDirectory& work, pid_t daemon, const std::string& on_disk)
      : mount_point_(work.make("blkio")), group_(mount_point_ + "/kvcachefs-bench") {
    if (::mount("none", mount_point_.c_str(), "cgroup", 0, "blkio") != 0) return;
    std::error_code error;
    std::filesystem::create_directory(group_, error);
    struct stat status {};
    must(::stat(on_disk.c_str(), &status), "stat", on_disk);
    const std::string limit =
        fmt::format("{}:{} {}", major(status.st_dev), minor(status.st_dev), kSlowBytesPerS);
    works_ = put(group_ + "/blkio.throttle.write_bps_device", limit);
    pids_ = {std::to_string(daemon)};
    std::istringstream children(read_text(fmt::format("/proc/{0}/task/{0}/children", daemon)));
    for (std::string child; children >> child;) pids_.push_back(child);
    for (const std::string& pid : pids_) works_ = works_ && put(group_ + "/cgroup.procs", pid);
  }
  ~SlowDisk() {
    for (const std::string& pid : pids_) (void)put(mount_point_ + "/cgroup.procs", pid);
    (void)::rmdir(group_.c_str());
    (void)::umount2(mount_point_.c_str(), MNT_DETACH);
  }
  SlowDisk(const SlowDisk&) = delete;
  SlowDisk& operator=(const SlowDisk&) = delete;
  bool works() const { return works_; }

 private:
  static bool put(const std::string& file, const std::string& text) {
    const UniqueFd fd(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
    return fd.get() >= 0 && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  }

  const std::string mount_point_;
  const std::string group_;
  std::vector<std::string> pids_;
  bool works_ = false;
};

// While it lives, clients store entries whose closes wait for the disk.
class Storers {
 public:
  explicit Storers(const std::string& directory) {
    for (unsigned storer = 0; storer < kStorers; ++storer)
      storers_.emplace_back([this, name = fmt::format("{}/storer{}", directory, storer)] {
        for (unsigned stored = 0; !stopping_; ++stored) {
          {
            const UniqueFd file = open_writer(name);
            (void)!::write(file.get(), payload(kStoredBytes).data(), kStoredBytes);
          }
          (void)::rename(name.c_str(), fmt::format("{}-{}", name, stored).c_str());
        }
      });
    ::sleep(2);  // by then all wait
  }
  ~Storers() { stopping_ = true; }
  Storers(const Storers&) = delete;
  Storers& operator=(const Storers&) = delete;

 private:
  std::atomic<bool> stopping_ = false;
  std::vector<std::jthread> storers_;
};

void add_row(Bench& bench, const std::string& figure, const std::string& load,
             const std::vector<double>& with, const std::vector<double>& without) {
  bench.report.add({fmt::format("open and close, {}, while {}", figure, load), "the same without them",
                    fmt::format("{:.1f} µs", median(with)), fmt::format("{:.1f} µs", median(without)),
                    median_ratio(with, without), Row::Bound::kAtMost, 1.5});
}

template <class Load>
void add_rows(Bench& bench, const Kvcachefs& ours, const std::string& load) {
  const std::string other = ours.directory() + "/../other";
  must(::mkdir(other.c_str(), 0755), "mkdir", other);
  store_entries(other, "entry", 1, payload(64 << 10));
  const auto open_and_close = [entry = other + "/entry0"] {
    ::close(static_cast<int>(must(::open(entry.c_str(), O_RDONLY | O_CLOEXEC), "open", entry)));
  };
  Latency without, with, warm_up;
  warm_up.measure(bench.scale.operations, open_and_close);
  for (unsigned round = 0; round < bench.scale.rounds; ++round) {
    without.measure(bench.scale.operations, open_and_close);
    const Load waiting(ours.directory());
    with.measure(bench.scale.operations, open_and_close);
  }
  add_row(bench, "median", load, with.median_us(), without.median_us());
  add_row(bench, "p99", load, with.p99_us(), without.p99_us());
}

}  // namespace

void waiting_rows(Bench& bench) {
  add_rows<Load>(bench, Kvcachefs(bench.work, "waiting", "size=64M"),
                 fmt::format("{} writers of another pool wait", kWriters));
  const DiskDirectory disk;
  const Kvcachefs ours(
      bench.work, "waiting-disk",
      fmt::format("size=256M,durability=sync,spill={0}/spill,spill_size=4G,catalog={0}/catalog",
                  disk.path()));
  const SlowDisk slow(bench.work, ours.pid(), disk.path());
  if (slow.works())
    add_rows<Storers>(bench, ours,
                      fmt::format("{} stores of another pool wait for a disk of 20 MB/s", kStorers));
  else
    fmt::print(stderr, "no row with a slow disk: this kernel's blkio controller cannot be used\n");
}

}  // namespace kvcachefs::bench
