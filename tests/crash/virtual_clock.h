// The monotonic clock of a program that links this file. It moves only by a microsecond at each look and by
// what the test adds, so that a run can be repeated exactly and no wait takes time. It starts near zero, long
// before the kernel's clock: a wait until a moment of this clock ends at once. One thread.
#pragma once

#include <chrono>

namespace kvcachefs::test {

void reset_clock();
void advance_clock(std::chrono::milliseconds by);

}  // namespace kvcachefs::test
