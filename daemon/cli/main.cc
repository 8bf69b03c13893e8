// kvcachefs(1).
#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <thread>

#include "daemon/cli/cli.h"
#include "daemon/cli/metrics_server.h"

namespace {

// The reader of the output may be gone, which a write would notice only at the end of the wait. The process
// therefore ends as it would at a write: by SIGPIPE or, if that is ignored, because the output cannot be
// written.
bool pause_for_reader(double seconds) {
  pollfd output{.fd = STDOUT_FILENO, .events = 0, .revents = 0};
  (void)::poll(&output, 1, static_cast<int>(seconds * 1000));
  if ((output.revents & (POLLERR | POLLHUP)) == 0) return true;
  (void)std::raise(SIGPIPE);
  std::cout.setstate(std::ios::badbit);
  return false;
}

bool wait_seconds(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  return true;
}

}  // namespace

int main(int argc, char** argv) {
  return kvcachefs::run_cli(argc, argv,
                            {.in = std::cin,
                             .out = std::cout,
                             .error = std::cerr,
                             .terminal = ::isatty(STDOUT_FILENO) != 0,
                             .wait = wait_seconds,
                             .pause = pause_for_reader,
                             .serve_metrics = kvcachefs::serve_metrics,
                             .open_screen = kvcachefs::open_screen});
}
