#include "daemon/cli/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <istream>
#include <ostream>
#include <vector>

#include "base/size.h"
#include "daemon/cli/progress.h"
#include "fs/control/orders.h"

namespace kvcachefs {
namespace {

constexpr double kLookEverySeconds = 0.2;
// A waiting command hands the daemon no more entries at once than this, however long its list is, because the
// daemon's queue is bounded.
constexpr size_t kBatchEntries = 512;
constexpr uint64_t kMostQueued = 2 * kBatchEntries;

std::string rate_of(uint64_t bytes, double seconds) {
  return seconds <= 0 ? "0" : format_size(static_cast<uint64_t>(static_cast<double>(bytes) / seconds));
}

// A name is given as the shell gives it: relative to the pool, or as a path below the mount.
CliResult<std::vector<PrefetchOrder>> named_orders(const MountTree& tree, const CliArguments& arguments) {
  const std::string below = tree.pool_path(arguments.pool).native() + "/";
  std::vector<PrefetchOrder> orders;
  for (const std::string& name : arguments.paths) {
    PrefetchOrder order{name.starts_with(below) ? name.substr(below.size()) : name, arguments.priority};
    Result<std::vector<PrefetchOrder>> checked = parse_prefetch_orders(prefetch_line(order));
    if (!checked) return stop(kUsage, checked.error().message);
    std::ranges::move(*checked, std::back_inserter(orders));
  }
  return orders;
}

CliResult<std::vector<PrefetchOrder>> listed_orders(const CliArguments& arguments, std::istream& in) {
  std::vector<PrefetchOrder> orders;
  size_t number = 0;
  for (std::string line; std::getline(in, line);) {
    ++number;
    Result<std::vector<PrefetchOrder>> read = parse_prefetch_orders(line);
    if (!read) return stop(kUsage, fmt::format("line {}: {}", number, read.error().message));
    for (PrefetchOrder& order : *read) {
      if (order.priority == 0) order.priority = arguments.priority;
      orders.push_back(std::move(order));
    }
  }
  return orders;
}

// The pool's counters do not start at 0, so their values from before the first order are subtracted.
struct Prefetching {
  const MountTree& tree;
  const std::string& pool;
  const uint64_t total;
  StatsReading before;
  StatsReading now;

  uint64_t since(std::string_view name) const { return now.number(name) - before.number(name); }
  uint64_t finished() const { return since("done") + since("failed") + since("dropped"); }

  Result<void> look() {
    Result<StatsReading> read = tree.pool_stats(pool, "prefetch");
    if (!read) return pass(read);
    now = std::move(*read);
    return {};
  }
  // The result is false if `environment.wait` was told to end.
  Result<bool> wait_until_queued(uint64_t at_most, ProgressBar& bar, const CliEnvironment& environment) {
    for (;;) {
      if (Result<void> seen = look(); !seen) return pass(seen);
      bar.show(finished(), total, since("bytes"));
      // Orders of other processes are not waited for once all of this command's are done.
      if (now.number("queued") <= at_most || finished() >= total) return true;
      if (!environment.wait(kLookEverySeconds)) return false;
    }
  }
};

CliResult<void> send(Prefetching& work, std::span<const PrefetchOrder> orders, bool wait, ProgressBar& bar,
                     const CliEnvironment& environment) {
  while (!orders.empty()) {
    const size_t count = std::min(orders.size(), kBatchEntries);
    std::string lines;
    for (const PrefetchOrder& order : orders.first(count)) lines += prefetch_line(order);
    orders = orders.subspan(count);
    Result<void> written = work.tree.write_control(work.pool, "prefetch", lines);
    if (!written) return pass(written);
    if (!wait) continue;
    Result<bool> waited = work.wait_until_queued(orders.empty() ? 0 : kMostQueued, bar, environment);
    if (!waited) return pass(waited);
    if (!*waited) return stop(kFailure, "interrupted; what was ordered goes on");
  }
  return {};
}

}  // namespace

CliResult<void> prefetch(const MountTree& tree, const CliArguments& arguments,
                         const CliEnvironment& environment) {
  const bool listed = arguments.paths.size() == 1 && arguments.paths.front() == "-";
  CliResult<std::vector<PrefetchOrder>> orders =
      listed ? listed_orders(arguments, environment.in) : named_orders(tree, arguments);
  if (!orders) return std::unexpected(orders.error());
  Prefetching work{tree, arguments.pool, orders->size(), {}, {}};
  if (Result<void> seen = work.look(); !seen) return pass(seen);
  work.before = work.now;
  {
    ProgressBar bar(environment);
    CliResult<void> sent = send(work, *orders, !arguments.no_wait, bar, environment);
    if (!sent) return sent;
  }
  if (arguments.no_wait) {
    environment.out << fmt::format("ordered {} entries\n", orders->size());
    return {};
  }
  environment.out << fmt::format("prefetched {} entries, {} read from disk\n", work.since("done"),
                                 format_size(work.since("bytes")));
  const uint64_t lost = work.since("failed") + work.since("dropped");
  if (lost == 0) return {};
  return stop(kFailure, fmt::format("{} entries are not there or could not be read, {} found no room",
                                    work.since("failed"), work.since("dropped")));
}

CliResult<void> scrub(const MountTree& tree, const CliArguments& arguments,
                      const CliEnvironment& environment) {
  if (Result<void> done = tree.write_control(arguments.pool, "scrub", arguments.order); !done)
    return pass(done);
  if (arguments.order == "stop") return {};
  StatsReading progress;
  double seconds = 0;
  {
    ProgressBar bar(environment);
    do {
      Result<StatsReading> read = tree.pool_stats(arguments.pool, "scrub");
      if (!read) return pass(read);
      progress = std::move(*read);
      seconds = bar.seconds();
      bar.show(progress.number("entries_done"), progress.number("entries_total"), progress.number("bytes"));
    } while (progress.text("state") == "running" && environment.wait(kLookEverySeconds));
  }
  const uint64_t damaged = progress.number("damaged");
  environment.out << fmt::format("scrubbed {} of {} entries, {} at {}/s, {} damaged\n",
                                 progress.number("entries_done"), progress.number("entries_total"),
                                 format_size(progress.number("bytes")),
                                 rate_of(progress.number("bytes"), seconds), damaged);
  if (progress.text("state") == "running") return stop(kFailure, "interrupted; the scrub goes on");
  const bool given_up = progress.text("state") == "stopped_by_errors";
  if (const uint64_t unreadable = progress.number("unreadable"); unreadable > 0)
    return stop(kFailure,
                fmt::format("{} entries could not be read and stay{}; {} were damaged and are discarded",
                            unreadable, given_up ? "; the scrub was given up" : "", damaged));
  if (damaged > 0) return stop(kFailure, fmt::format("{} entries were damaged and are discarded", damaged));
  return {};
}

}  // namespace kvcachefs
