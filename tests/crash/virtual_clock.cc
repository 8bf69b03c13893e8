#include "tests/crash/virtual_clock.h"

#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>

namespace kvcachefs::test {
namespace {

constexpr uint64_t kBegin_ns = 1'000'000'000;
constexpr uint64_t kLook_ns = 1'000;
constexpr uint64_t kSecond_ns = 1'000'000'000;
uint64_t clock_ns = kBegin_ns;

}  // namespace

void reset_clock() {
  clock_ns = kBegin_ns;
}

void advance_clock(std::chrono::milliseconds by) {
  clock_ns += static_cast<uint64_t>(std::chrono::nanoseconds(by).count());
}

}  // namespace kvcachefs::test

// This replaces the C library's function in the whole program.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  using namespace kvcachefs::test;
  if (clock != CLOCK_MONOTONIC && clock != CLOCK_MONOTONIC_COARSE)
    return static_cast<int>(::syscall(SYS_clock_gettime, clock, now));
  clock_ns += kLook_ns;
  now->tv_sec = static_cast<time_t>(clock_ns / kSecond_ns);
  now->tv_nsec = static_cast<long>(clock_ns % kSecond_ns);
  return 0;
}
