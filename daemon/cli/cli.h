// The kvcachefs tool. One thread. Exit codes: 0 for success, 1 for a failure, 2 for wrong usage, 3 if no
// kvcachefs is mounted, or none at the place that was named.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

namespace kvcachefs {

struct CliEnvironment {
  std::istream& in;
  std::ostream& out;
  std::ostream& error;
  std::string mountinfo = "/proc/self/mountinfo";
  bool terminal = false;  // the output is a terminal: a view or a line is redrawn in place
  // The function waits between two views or looks; it returns false to end them.
  std::function<bool(double seconds)> wait;
};

int run_cli(int argc, const char* const* argv, const CliEnvironment& environment);

}  // namespace kvcachefs
