// A flat directory of very many 4 KiB entries: create, stat, list, remove, and the daemon's memory for each
// entry.
#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "alloc/memory_arena.h"
#include "base/clock.h"
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
  double remove = 0;
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

uint64_t list(const std::string& path) {
  DIR* const directory = ::opendir(path.c_str());
  if (directory == nullptr) must(-1, "opendir", path);
  uint64_t entries = 0;
  while (const dirent* entry = ::readdir(directory)) entries += entry->d_name[0] != '.';
  ::closedir(directory);
  return entries;
}

template <class Operation>
double rate_of(uint64_t count, const Operation& operation) {
  const uint64_t begin_ns = now_ns();
  for (uint64_t number = 0; number < count; ++number) {
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
  const uint64_t begin_ns = now_ns();
  const uint64_t listed = list(path);
  result.list = rate(listed, begin_ns);
  if (listed != count) throw BenchError(fmt::format("{} of {} entries listed", listed, count));
  result.remove = rate_of(count, [&](const std::string& name) {
    must(::unlinkat(directory.get(), name.c_str(), 0), "unlinkat", name);
  });
  return result;
}

}  // namespace

void directory_rows(Bench& bench) {
  const uint64_t count = bench.scale.directory_entries;
  // A pool's size counts its names, too.
  const std::string size =
      "size=" + std::to_string(count * (kEntryBytes + kInodeBytes) * 5 / 4 + (uint64_t{64} << 20));
  Run ours;
  double bytes_an_entry = 0;
  {
    const Kvcachefs mount(bench.work, "directory", size);
    const uint64_t before_bytes = mount.private_bytes();
    ours = run(mount.directory(), count, [&] {
      const uint64_t after_bytes = mount.private_bytes();
      bytes_an_entry = static_cast<double>(after_bytes - before_bytes) / static_cast<double>(count);
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
  row("unlink", &Run::remove);
  // The row of a quick run has no bound, because few entries share the memory that the daemon takes once.
  const auto bound = bench.scale.quick ? Row::Bound::kNone : Row::Bound::kAtMost;
  bench.report.add({"daemon memory per entry, bytes", "", "", "", bytes_an_entry, bound, kBytesAnEntryMax});
}

}  // namespace kvcachefs::bench
