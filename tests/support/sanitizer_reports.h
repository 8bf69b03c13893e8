// The reports of sanitizers about the programs that a test starts. Most are daemons, and their exit status is
// lost when they are killed or when another program started them. Every such program writes its reports to a
// directory of this process (log_path in ASAN_OPTIONS and the like). Each report fails the test after which
// it is found, or the whole program if it comes after the last test. A SIGKILL suppresses only what a daemon
// reports at its exit: leaks.
//
// Only for the main thread of a test program. A report that cannot be read throws, which is a failure too.
#pragma once

#include <string>

namespace kvcachefs::test {

// Called once before the tests start; mount.cc does so for every program that links it.
void watch_for_sanitizer_reports();

// The text of the reports since the last call; empty: none.
std::string take_sanitizer_reports();

}  // namespace kvcachefs::test
