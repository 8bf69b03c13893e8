// Rounds of measurements that alternate between what is compared, and their medians. One thread. Throws
// BenchError where a system call that has to work does not: a benchmark has nobody to hand an error to.
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

// The value of a system call; throws with its name, the path and the reason if it is negative.
long must(long value, const std::string& call, const std::string& path);

// How much of everything is done; --quick is for seeing that it works at all.
struct Scale {
  bool quick = false;
  unsigned rounds = 9;
  uint64_t working_set_bytes = uint64_t{1} << 30;
  uint64_t small_set_bytes = uint64_t{64} << 20;
  uint64_t operations = 5000;  // round trips to a server a round
  uint64_t cached_operations = 200'000;
  uint64_t fill_pool_bytes = uint64_t{1} << 30;
  uint64_t directory_entries = 1'000'000;
  uint64_t trace_requests = UINT64_MAX;
};
Scale full_scale();
Scale quick_scale();

// A contestant runs once and says its rate (bytes or operations a second).
using Contestant = std::function<double()>;

// rates[contestant][round]. Each round runs all of them, beginning with another one each time, after one
// round that does not count.
class Rates {
 public:
  Rates() = default;
  static Rates measure(unsigned rounds, const std::vector<Contestant>& contestants);
  void append(const Rates& more);
  double median_of(size_t contestant) const;
  // The median over the rounds of the ratio within each round: what disturbs a round disturbs both.
  double ratio(size_t contestant, size_t reference) const;

 private:
  std::vector<std::vector<double>> rates_;
};

double median(std::vector<double> values);
double rate(uint64_t amount, uint64_t begin_ns);  // from begin_ns until now

// True once SIGINT or SIGTERM asked to stop; measure() then throws, so that mounts are cleaned up.
void stop_on_signals();
void throw_if_stopped();

}  // namespace kvcachefs::bench
