// Rounds of measurements that alternate between contestants, and their medians. One thread. Throws BenchError
// where a system call that must work fails, because a benchmark has no caller to hand an error to.
#pragma once

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

namespace kvcachefs::bench {

struct BenchError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The result is the value of a system call. A negative value throws, with the call's name, the path and the
// reason.
long must(long value, const std::string& call, const std::string& path);

// A Scale says how much of everything is done; --quick only shows that everything works.
struct Scale {
  bool quick = false;
  unsigned rounds = 9;
  uint64_t working_set_bytes = uint64_t{1} << 30;
  uint64_t small_set_bytes = uint64_t{64} << 20;
  uint64_t operations = 5000;  // round trips to a server in each round
  uint64_t cached_operations = 200'000;
  uint64_t fill_pool_bytes = uint64_t{1} << 30;
  uint64_t directory_entries = 1'000'000;
  uint64_t trace_requests = UINT64_MAX;
};
Scale full_scale();
Scale quick_scale();

// A contestant runs once and returns its rate (bytes or operations a second).
using Contestant = std::function<double()>;

// The rates are rates_[contestant][round]. Each round runs all contestants and begins with another one than
// the round before; one round before all others does not count.
class Rates {
 public:
  Rates() = default;
  static Rates measure(unsigned rounds, const std::vector<Contestant>& contestants);
  void append(const Rates& more);
  double median_of(size_t contestant) const;
  // The result is the median over the rounds of the ratio within each round, because a disturbance of a round
  // disturbs both.
  double ratio(size_t contestant, size_t reference) const;

 private:
  std::vector<std::vector<double>> rates_;
};

// The medians and 99th percentiles of rounds of operations.
class Latency {
 public:
  void measure(uint64_t operations, const std::function<void()>& operation);
  const std::vector<double>& median_us() const { return median_us_; }
  const std::vector<double>& p99_us() const { return p99_us_; }

 private:
  std::vector<double> median_us_, p99_us_;
};

double median(std::vector<double> values);
// The median of the ratios within each round.
double median_ratio(const std::vector<double>& ours, const std::vector<double>& theirs);
double rate(uint64_t amount, uint64_t begin_ns);  // from begin_ns until now

// After stop_on_signals(), SIGINT or SIGTERM makes throw_if_stopped(), and so measure(), throw, so that
// mounts are cleaned up.
void stop_on_signals();
void throw_if_stopped();

}  // namespace kvcachefs::bench
