// Places where a test makes the process die, a thread hang or a call fail, to check what follows. Any thread;
// fault_point() does not return where the test asks for that. The environment variable KVCACHEFS_FAULT_FILE
// names a file of lines. A thread that comes to the place in the first line removes that line, so that it
// takes effect once, and aborts the process; the next line is then for a successor. Without the variable,
// which is read once, a place costs one branch.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvcachefs {

extern const bool fault_points_are_on;
void reached(const char* place, uint64_t number);

// Each line is one of these:
//   `PLACE`         aborts the process
//   `PLACE NUMBER`  the same, at a place with several numbers (requests, by their opcode)
//   `hang PLACE`    the thread sleeps for ever
//   `spin PLACE`    the thread loops for ever without sleeping
//   `pause PLACE`   the thread waits until the test removes FILE.paused, whose appearance says that it waits
//   `slow PLACE`    every thread that comes by waits 25 ms; the line stays
inline void fault_point(const char* place, uint64_t number = 0) {
  if (fault_points_are_on) [[unlikely]]
    reached(place, number);
}

// True while the test holds the thread at the place, which meanwhile does what others need of it: from a line
// `hold PLACE`, removed as above, until the test removes FILE.paused. Of one place in the process at a time.
bool holds(const char* place, uint64_t number);
inline bool is_held(const char* place, uint64_t number = 0) {
  return fault_points_are_on && holds(place, number);
}

int wanted_error(std::string_view place);

// The errno with which the call at this place is to fail; 0: the call is to be made. A line `fail PLACE ERRNO
// [N]` is for the thread that comes after N others, and is removed as above; `failing PLACE ERRNO`, anywhere
// in the file, is for every thread as long as the line stands.
inline int injected_error(std::string_view place) {
  return fault_points_are_on ? wanted_error(place) : 0;
}

}  // namespace kvcachefs
