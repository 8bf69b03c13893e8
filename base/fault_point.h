// Places where a test has the process die, or a thread hang, to see what a successor makes of what is left.
// Any thread; does not return where it was asked to. The environment variable KVCACHEFS_FAULT_FILE names a
// file of lines: whoever comes to the place that the first names takes that line away, so that it happens
// once, and aborts; the next line is for a successor. Without the variable, read once, a place costs one
// branch.
#pragma once

#include <cstdint>

namespace kvcachefs {

extern const bool fault_points_are_on;
void reached(const char* place, uint64_t number);

// A line is a place, `hang PLACE`, or `PLACE NUMBER` where several things come by it: requests, by their
// opcode.
inline void fault_point(const char* place, uint64_t number = 0) {
  if (fault_points_are_on) [[unlikely]]
    reached(place, number);
}

}  // namespace kvcachefs
