// Calls that carry no bytes: open and close beside the minimal passthrough server on the same transport,
// existence probes of names that the kernel knows beside a tmpfs, and probes of unknown names beside the
// minimal server.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>

#include "base/clock.h"
#include "bench/entries.h"
#include "bench/rows.h"

namespace kvcachefs::bench {
namespace {

constexpr uint64_t kEntryBytes = uint64_t{2} << 20;

Contestant opener(const std::string& path, uint64_t operations) {
  return [=] {
    const uint64_t begin_ns = now_ns();
    for (uint64_t operation = 0; operation < operations; ++operation) {
      const int fd = static_cast<int>(must(::open(path.c_str(), O_RDONLY | O_CLOEXEC), "open", path));
      ::close(fd);
    }
    return rate(operations, begin_ns);
  };
}

Contestant known_probe(const std::string& path, uint64_t operations) {
  return [=] {
    const uint64_t begin_ns = now_ns();
    for (uint64_t operation = 0; operation < operations; ++operation) {
      must(::faccessat(AT_FDCWD, path.c_str(), F_OK, 0), "faccessat", path);
    }
    return rate(operations, begin_ns);
  };
}

// Each probe uses a new name, because the kernel remembers names that it has asked for.
Contestant unknown_probe(const std::string& prefix, uint64_t operations) {
  return [=, next = std::make_shared<uint64_t>(0)] {
    const uint64_t begin_ns = now_ns();
    for (uint64_t operation = 0; operation < operations; ++operation) {
      const std::string path = prefix + std::to_string((*next)++);
      if (::faccessat(AT_FDCWD, path.c_str(), F_OK, 0) == 0 || errno != ENOENT)
        throw BenchError(path + " exists");
    }
    return rate(operations, begin_ns);
  };
}

void rows_over(Bench& bench, Transport transport, const Tmpfs& tmpfs) {
  const std::string suffix = transport == Transport::kIoUring ? "-uring" : "";
  const Kvcachefs ours(bench.work, "open" + suffix, "size=256M", transport);
  const std::map<std::string, std::string> stats = ours.mount_stats();
  const auto threads = stats.find("threads");
  if (threads == stats.end()) throw BenchError("no `threads` in .kvcachefs/stats");
  const MinimalServer minimal(bench.work, "minimal" + suffix, tmpfs.directory() + "/entry0", transport,
                              threads->second);
  store_entries(ours.directory(), "entry", 64, payload(64 << 10));
  const std::string entry = ours.directory() + "/entry0";
  const std::string over = std::string(" over ") + transport_name(transport);

  const Rates opens = Rates::measure(bench.scale.rounds, {opener(entry, bench.scale.operations),
                                                          opener(minimal.file(), bench.scale.operations)});
  bench.report.add({"open and close" + over, "minimal server", per_operation(opens.median_of(0)),
                    per_operation(opens.median_of(1)), opens.ratio(0, 1), Row::Bound::kAtLeast, 0.8});
  const Rates unknown = Rates::measure(bench.scale.rounds,
                                       {unknown_probe(ours.directory() + "/missing-", bench.scale.operations),
                                        unknown_probe(minimal.missing(), bench.scale.operations)});
  bench.report.add({"probe of an unknown name" + over, "minimal server", per_operation(unknown.median_of(0)),
                    per_operation(unknown.median_of(1)), unknown.ratio(0, 1), Row::Bound::kAtLeast, 0.8});
  if (transport == Transport::kIoUring) return;
  const Rates known = Rates::measure(
      bench.scale.rounds, {known_probe(entry, bench.scale.cached_operations),
                           known_probe(tmpfs.directory() + "/entry0", bench.scale.cached_operations)});
  bench.report.add({"probe of a known name", "tmpfs", per_operation(known.median_of(0)),
                    per_operation(known.median_of(1)), known.ratio(0, 1), Row::Bound::kAtLeast, 0.7});
}

}  // namespace

void open_rows(Bench& bench) {
  const Tmpfs tmpfs(bench.work, "open-tmpfs", "huge=within_size,size=64M");
  store_entries(tmpfs.directory(), "entry", 1, payload(kEntryBytes));
  rows_over(bench, Transport::kDevFuse, tmpfs);
  if (io_uring_offered()) {
    rows_over(bench, Transport::kIoUring, tmpfs);
  } else {
    bench.report.note("No io_uring rows: /sys/module/fuse/parameters/enable_uring is not Y.");
  }
}

}  // namespace kvcachefs::bench
