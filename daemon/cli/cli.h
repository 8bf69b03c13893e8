// The kvcachefs tool. One thread. Exit codes: 0 for success, 1 for a failure, 2 for wrong usage, 3 if no
// kvcachefs is mounted, or none at the place that was named.
#pragma once

#include <chrono>
#include <functional>
#include <iosfwd>
#include <memory>
#include <string>

#include "base/result.h"
#include "daemon/cli/listen_address.h"
#include "daemon/cli/screen.h"

namespace kvcachefs {

struct CliEnvironment {
  std::istream& in;
  std::ostream& out;
  std::ostream& error;
  std::string mountinfo = "/proc/self/mountinfo";
  // A command fails if the daemon does not answer for this long. The supervisor replaces a hanging process
  // sooner (hang_after).
  std::chrono::milliseconds patience = std::chrono::seconds(40);
  bool terminal = false;  // the output is a terminal: a view or a line is redrawn in place
  // The function waits between two views or looks; it returns false to end them.
  std::function<bool(double seconds)> wait;
  // The same for a command that only its reader ends: also returns false once the output has no reader.
  std::function<bool(double seconds)> pause = wait;
  // serve_metrics() of daemon/cli/metrics_server.h, given from outside so that only kvcachefs(1) has the HTTP
  // library.
  std::function<Result<void>(const ListenAddress&, std::function<Result<std::string>()> source,
                             const std::function<void(const std::string& url)>& serving)>
      serve_metrics = {};
  std::function<std::unique_ptr<Screen>()> open_screen =
      {};  // that of daemon/cli/screen.h; none: there is no terminal
};

int run_cli(int argc, const char* const* argv, const CliEnvironment& environment);

}  // namespace kvcachefs
