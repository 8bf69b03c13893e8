// The clocks. Any thread; never fails.
#pragma once

#include <time.h>

#include <cstdint>

namespace kvcachefs {

inline uint64_t now_ns() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// Exact to the timer tick (1-4 ms) at a quarter of the cost of now_ns(); for ages, not for latencies.
inline uint64_t now_coarse_ms() {
  timespec t{};
  clock_gettime(CLOCK_MONOTONIC_COARSE, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1000u + static_cast<uint64_t>(t.tv_nsec) / 1'000'000u;
}

// Since 1970, for what people read; it may be set back.
inline uint64_t wall_clock_ns() {
  timespec t{};
  clock_gettime(CLOCK_REALTIME, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(t.tv_nsec);
}

// now_coarse_ms() at a second since 1970, which is at most 2^54. Where the host's clock is set later, this
// stays as it is.
inline uint64_t coarse_ms_at(uint64_t second) {
  const uint64_t wall_ms = wall_clock_ns() / 1'000'000, at_ms = second * 1000, now_ms = now_coarse_ms();
  if (at_ms >= wall_ms) return now_ms + (at_ms - wall_ms);
  return now_ms > wall_ms - at_ms ? now_ms - (wall_ms - at_ms) : 1;
}

}  // namespace kvcachefs
