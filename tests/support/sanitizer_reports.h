// What sanitizers say about the programs that a test starts: daemons above all, whose exit status nobody sees
// when they are killed, or when another program started them. Every such program writes its reports to a
// directory of this process (log_path in ASAN_OPTIONS and its like), and each report fails the test at whose
// end it is found, or the whole program if it comes after the last test. A SIGKILL cuts off only what a
// daemon reports at its exit, which is leaks.
//
// For the test programs' main thread. Failure: reports that cannot be read are failures too.
#pragma once

#include <string>

namespace kvcachefs::test {

// Once, before the tests start; mount.cc does so for every program that links it.
void watch_for_sanitizer_reports();

// The text of the reports since the last call; empty: none.
std::string take_sanitizer_reports();

}  // namespace kvcachefs::test
