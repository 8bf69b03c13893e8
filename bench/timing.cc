#include "bench/timing.h"

#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace kvcachefs::bench {
namespace {

std::atomic<bool> stopped = false;

}  // namespace

long must(long value, const std::string& call, const std::string& path) {
  if (value < 0) throw BenchError(call + " " + path + ": " + std::strerror(errno));
  return value;
}

Scale full_scale() {
  return {};
}

Scale quick_scale() {
  return {.quick = true,
          .rounds = 1,
          .working_set_bytes = uint64_t{64} << 20,
          .small_set_bytes = uint64_t{32} << 20,
          .operations = 50,
          .cached_operations = 500,
          .fill_pool_bytes = uint64_t{64} << 20,
          .directory_entries = 500,
          .trace_requests = 50};
}

Rates Rates::measure(unsigned rounds, const std::vector<Contestant>& contestants) {
  Rates rates;
  rates.rates_.resize(contestants.size());
  for (unsigned round = 0; round <= rounds; ++round) {
    for (size_t turn = 0; turn < contestants.size(); ++turn) {
      throw_if_stopped();
      const size_t contestant = (round + turn) % contestants.size();
      const double measured = contestants[contestant]();
      if (round > 0) rates.rates_[contestant].push_back(measured);
    }
  }
  return rates;
}

void Rates::append(const Rates& more) {
  rates_.resize(std::max(rates_.size(), more.rates_.size()));
  for (size_t contestant = 0; contestant < more.rates_.size(); ++contestant) {
    std::vector<double>& mine = rates_[contestant];
    mine.insert(mine.end(), more.rates_[contestant].begin(), more.rates_[contestant].end());
  }
}

double Rates::median_of(size_t contestant) const {
  return median(rates_[contestant]);
}

double Rates::ratio(size_t contestant, size_t reference) const {
  return median_ratio(rates_[contestant], rates_[reference]);
}

void Latency::measure(uint64_t operations, const std::function<void()>& operation) {
  std::vector<uint64_t> taken_ns;
  for (uint64_t done = 0; done < operations; ++done) {
    throw_if_stopped();
    const uint64_t begin_ns = now_ns();
    operation();
    taken_ns.push_back(now_ns() - begin_ns);
  }
  std::ranges::sort(taken_ns);
  median_us_.push_back(static_cast<double>(taken_ns[taken_ns.size() / 2]) / 1000);
  p99_us_.push_back(static_cast<double>(taken_ns[taken_ns.size() * 99 / 100]) / 1000);
}

double median_ratio(const std::vector<double>& ours, const std::vector<double>& theirs) {
  std::vector<double> ratios;
  for (size_t round = 0; round < ours.size(); ++round) ratios.push_back(ours[round] / theirs[round]);
  return median(ratios);
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double rate(uint64_t amount, uint64_t begin_ns) {
  return static_cast<double>(amount) * 1e9 / static_cast<double>(std::max<uint64_t>(now_ns() - begin_ns, 1));
}

void stop_on_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stopped = true; };
  ::sigaction(SIGINT, &action, nullptr);
  ::sigaction(SIGTERM, &action, nullptr);
}

void throw_if_stopped() {
  if (stopped) throw BenchError("stopped by a signal");
}

}  // namespace kvcachefs::bench
