// The monotonic clock of a program that links this: it stands still but for a microsecond at each look and
// for what the test moves it on by, so that a run is the same again and no wait takes time. It starts near
// zero, long before the kernel's own: a wait until a moment of this clock ends at once. One thread.
#pragma once

#include <chrono>

namespace kvcachefs::test {

void reset_clock();
void advance_clock(std::chrono::milliseconds by);

}  // namespace kvcachefs::test
