// A stand-in is a copy of the supervisor that waits while the supervisor becomes another program. If that
// program ends before it serves, the copy goes on as the supervisor, with the program from before: it has the
// same descriptors. It waits no longer than until a child serves, until the mount has ended, or until it is
// dismissed. It is no child of the supervisor, which looks for its serving process among its children. Under
// a service manager that ends what is left of a service whose first process has ended, it ends too. Main
// thread. Failure: without a stand-in, which the log says, an upgrade goes on all the same.
#pragma once

#include <chrono>
#include <utility>

#include "base/unique_fd.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

// The line from a supervisor to its stand-in. When the last process that has it ends, the stand-in goes on.
class StandIn {
 public:
  StandIn() = default;  // there is none
  explicit StandIn(UniqueFd line) : line_(std::move(line)) {}

  explicit operator bool() const { return static_cast<bool>(line_); }
  int fd() const { return line_.get(); }
  void dismiss();

 private:
  UniqueFd line_;
};

struct StandingIn {
  StandIn line;
  bool is_stand_in = false;
};

// In the calling process the result is the line to its stand-in. In the stand-in the call returns when it has
// to go on; if not, it exits. A program that has not begun to take over after `hang_after` is killed (0:
// never).
StandingIn begin_standing_in(Survivors& survivors, std::chrono::seconds hang_after);

}  // namespace kvcachefs
