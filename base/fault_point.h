// Places where a test has the process die, a thread hang or a call fail, to see what comes of it.
// Any thread; fault_point() does not return where it was asked to. The environment variable
// KVCACHEFS_FAULT_FILE names a file of lines: whoever comes to the place that the first names takes that line
// away, so that it happens once, and aborts; the next line is for a successor. Without the variable, read
// once, a place costs one branch.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcachefs {

extern const bool fault_points_are_on;
void reached(const char* place, uint64_t number);

// A line is a place, `hang PLACE`, `pause PLACE` (until the test takes FILE.paused away, whose appearance
// says that it has begun), `slow PLACE` (which stays, and costs whoever comes by 25 ms), or `PLACE NUMBER`
// where several things come by it: requests, by their opcode.
inline void fault_point(const char* place, uint64_t number = 0) {
  if (fault_points_are_on) [[unlikely]]
    reached(place, number);
}

int wanted_error(std::string_view place);

// The errno that is to come of what is done here; 0: what comes of it. A line `fail PLACE ERRNO [N]` is for
// whoever comes after N others, and is taken away as above; `failing PLACE ERRNO`, anywhere, is for all as
// long as it stands.
inline int injected_error(std::string_view place) {
  return fault_points_are_on ? wanted_error(place) : 0;
}

}  // namespace kvcachefs
