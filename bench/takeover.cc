#include "bench/takeover.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <future>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench/entries.h"
#include "bench/report.h"
#include "bench/timing.h"

namespace kvcachefs::bench {
namespace {

double seconds_since(uint64_t begin_ns) {
  return static_cast<double>(now_ns() - begin_ns) / 1e9;
}

void open_and_close(const std::string& path, int flags) {
  const UniqueFd fd(static_cast<int>(must(::open(path.c_str(), flags | O_CLOEXEC, 0644), "open", path)));
}

}  // namespace

TakeoverTimes kill_serving_process(const Kvcachefs& mount) {
  const auto bytes = payload(64 << 10);
  const double cold_before = mount.pool_stat("cold_entries");
  store_entry(mount.directory(), "cold", bytes);
  while (mount.pool_stat("cold_entries") <= cold_before) {
    throw_if_stopped();
    write_text(mount.control("evict"), "100%\n");
  }
  store_entry(mount.directory(), "warm", bytes);
  const std::string warm = mount.directory() + "/warm", cold = mount.directory() + "/cold";
  const pid_t serving = std::stoi(mount.mount_stats().at("pid"));
  const std::string stored = mount.directory() + "/stored-in-a-takeover";
  must(::kill(serving, SIGKILL), "kill", std::to_string(serving));
  const uint64_t begin_ns = now_ns();
  const auto timed = [begin_ns](const std::string& path, int flags) {
    return std::async(std::launch::async, [=] {
      open_and_close(path, flags);
      return seconds_since(begin_ns);
    });
  };
  auto store = timed(stored, O_CREAT | O_WRONLY), open_cold = timed(cold, O_RDONLY);
  TakeoverTimes times;
  while (store.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    throw_if_stopped();
    const uint64_t open_ns = now_ns();
    open_and_close(warm, O_RDONLY);
    times.longest_open_ms = std::max(times.longest_open_ms, seconds_since(open_ns) * 1e3);
  }
  times.store_s = store.get();
  times.cold_open_s = open_cold.get();
  must(::unlink(stored.c_str()), "unlink", stored);
  return times;
}

}  // namespace kvcachefs::bench
