// The kvcachefs tool. One thread. Exits with 0; 1: it failed; 2: used wrongly; 3: no kvcachefs is mounted
// (there).
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
  bool terminal = false;  // redraw in place
  // Waits between two views or looks; false ends them.
  std::function<bool(double seconds)> wait;
};

int run_cli(int argc, const char* const* argv, const CliEnvironment& environment);

}  // namespace kvcachefs
