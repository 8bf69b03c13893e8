#include "bench/takeover.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <future>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "bench/entries.h"
#include "bench/report.h"
#include "bench/timing.h"

namespace kvcachefs::bench {
namespace {

constexpr int kColdEntries = 64;

double seconds_since(uint64_t begin_ns) {
  return static_cast<double>(now_ns() - begin_ns) / 1e9;
}

void open_and_close(const std::string& path, int flags) {
  const UniqueFd fd(static_cast<int>(must(::open(path.c_str(), flags | O_CLOEXEC, 0644), "open", path)));
}

}  // namespace

TakeoverTimes kill_serving_process(const Kvcachefs& mount) {
  const auto bytes = payload(64 << 10);
  const auto small = payload(4096);  // a disk of few entries has little room beside them
  const double cold_before = mount.pool_stat("cold_entries");
  std::vector<std::string> cold;
  for (int i = 0; i < kColdEntries; ++i) {
    const std::string name = "cold-" + std::to_string(i);
    store_entry(mount.directory(), name, small);
    cold.push_back(mount.directory() + "/" + name);
  }
  while (mount.pool_stat("cold_entries") < cold_before + kColdEntries) {
    throw_if_stopped();
    write_text(mount.control("evict"), "100%\n");
  }
  store_entry(mount.directory(), "warm", bytes);
  const std::string warm = mount.directory() + "/warm";
  const pid_t serving = std::stoi(mount.mount_stats().at("pid"));
  const std::string stored = mount.directory() + "/stored-in-a-takeover";
  must(::kill(serving, SIGKILL), "kill", std::to_string(serving));
  const auto longest_of = [](const std::vector<std::string>& paths, int flags) {
    double longest_s = 0;
    for (const std::string& path : paths) {
      const uint64_t open_ns = now_ns();
      open_and_close(path, flags);
      longest_s = std::max(longest_s, seconds_since(open_ns));
    }
    return longest_s;
  };
  auto store = std::async(std::launch::async, longest_of, std::vector{stored}, O_CREAT | O_WRONLY);
  auto open_cold = std::async(std::launch::async, longest_of, cold, O_RDONLY);
  TakeoverTimes times;
  while (store.wait_for(std::chrono::seconds(0)) != std::future_status::ready) {
    throw_if_stopped();
    times.longest_open_ms = std::max(times.longest_open_ms, longest_of({warm}, O_RDONLY) * 1e3);
  }
  times.store_s = store.get();
  times.longest_cold_open_ms = open_cold.get() * 1e3;
  must(::unlink(stored.c_str()), "unlink", stored);
  return times;
}

}  // namespace kvcachefs::bench
