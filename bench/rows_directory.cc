// A flat directory of very many 4 KiB entries: create, stat, list, match, remove, what the pool says of
// itself meanwhile, and the daemon's memory for each entry.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/memory_arena.h"
#include "base/clock.h"
#include "base/sys_disk.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kEntryBytes = 4096;
constexpr uint64_t kBytesAnEntryMax = 256;

struct Run {
  double create = 0;  // operations a second
  double stat = 0;
  double list = 0;
  double match = 0;
  double remove = 0;
  double sweep = 0;
};

std::string name_of(uint64_t number) {
  return fmt::format("entry-{:08}", number);
}

void create_entry(int directory, const std::string& name) {
  const int fd = static_cast<int>(
      must(::openat(directory, name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644), "openat", name));
  must(::write(fd, payload(kEntryBytes).data(), kEntryBytes), "write", name);
  must(::close(fd), "close", name);
}

// Names a second of one listing, of which all have to be seen.
template <class See>
double list(const std::string& path, uint64_t count, const See& see) {
  const uint64_t begin_ns = now_ns();
  DIR* const directory = ::opendir(path.c_str());
  if (directory == nullptr) must(-1, "opendir", path);
  uint64_t listed = 0;
  while (const dirent* entry = ::readdir(directory)) {
    if (entry->d_name[0] == '.') continue;
    ++listed;
    see(entry->d_name);
  }
  ::closedir(directory);
  if (listed != count) throw BenchError(fmt::format("{} of {} entries listed", listed, count));
  return rate(listed, begin_ns);
}

template <class Operation>
double rate_of(uint64_t count, const Operation& operation, uint64_t first = 0) {
  const uint64_t begin_ns = now_ns();
  for (uint64_t number = first; number < first + count; ++number) {
    operation(name_of(number));
    if (number % 4096 == 0) throw_if_stopped();
  }
  return rate(count, begin_ns);
}

template <class Between>
Run run(const std::string& path, uint64_t count, const Between& after_create) {
  const UniqueFd directory(
      static_cast<int>(must(::open(path.c_str(), O_RDONLY | O_DIRECTORY), "open", path)));
  Run result;
  result.create = rate_of(count, [&](const std::string& name) { create_entry(directory.get(), name); });
  after_create();
  result.stat = rate_of(count, [&](const std::string& name) {
    struct stat status {};
    must(::fstatat(directory.get(), name.c_str(), &status, 0), "fstatat", name);
  });
  result.list = list(path, count, [](const char*) {});
  [[maybe_unused]] uint64_t matches = 0;
  result.match = list(path, count, [&](const char* name) { matches += ::fnmatch("*99*", name, 0) == 0; });
  const auto remove = [&](const std::string& name) {
    must(::unlinkat(directory.get(), name.c_str(), 0), "unlinkat", name);
  };
  result.remove = rate_of(count / 2, remove);
  result.sweep = list(path, count - count / 2, remove);
  return result;
}

// Milliseconds of one read of the whole file, the median of some.
double read_ms(const std::string& path) {
  std::vector<double> times;
  for (int i = 0; i < 21; ++i) {
    const uint64_t begin_ns = now_ns();
    if (!sys::read_text(path.c_str())) throw BenchError(path + " cannot be read");
    times.push_back(static_cast<double>(now_ns() - begin_ns) / 1e6);
  }
  return median(std::move(times));
}

}  // namespace

void directory_rows(Bench& bench) {
  const uint64_t count = bench.scale.directory_entries;
  // A pool's size counts its names, too.
  const std::string size =
      "size=" + std::to_string(count * (kEntryBytes + kInodeBytes) * 5 / 4 + (uint64_t{64} << 20));
  Run ours;
  double bytes_an_entry = 0, stats_ms = 0, numa_ms = 0;
  {
    const Kvcachefs mount(bench.work, "directory", size);
    const uint64_t before_bytes = mount.private_bytes();
    ours = run(mount.directory(), count, [&] {
      const uint64_t after_bytes = mount.private_bytes();
      bytes_an_entry = static_cast<double>(after_bytes - before_bytes) / static_cast<double>(count);
      stats_ms = read_ms(mount.control("stats"));
      numa_ms = read_ms(mount.control("numa"));
    });
  }
  const Tmpfs tmpfs(bench.work, "directory-tmpfs", "nr_inodes=0,huge=within_size," + size);
  const Run theirs = run(tmpfs.directory(), count, [] {});
  const auto row = [&](const char* what, double Run::*member) {
    bench.report.add({fmt::format("{} entries of 4 KiB in one directory: {}", count, what), "tmpfs",
                      per_operation(ours.*member), per_operation(theirs.*member),
                      ours.*member / theirs.*member});
  };
  row("create, write, close", &Run::create);
  row("stat", &Run::stat);
  row("readdir of all, per entry", &Run::list);
  row("readdir of all and match of the name, per entry", &Run::match);
  row("unlink", &Run::remove);
  row("readdir and unlink of what is listed", &Run::sweep);
  for (const auto& [file, ms] : {std::pair("stats", stats_ms), std::pair("numa", numa_ms)})
    bench.report.add({fmt::format("read of .pool/{} of a pool of {} entries, ms", file, count), "", "", "",
                      ms, Row::Bound::kAtMost, 1});
  // The row of a quick run has no bound, because few entries share the memory that the daemon takes once.
  const auto bound = bench.scale.quick ? Row::Bound::kNone : Row::Bound::kAtMost;
  bench.report.add({"daemon memory per entry, bytes", "", "", "", bytes_an_entry, bound, kBytesAnEntryMax});
}

}  // namespace kvcachefs::bench
