#include "daemon/stand_in.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "base/log.h"
#include "base/sys.h"
#include "base/sys_process.h"

namespace kvcachefs {
namespace {

constexpr int kStandInLooksEvery = 100;  // ms

// True if the supervisor has ended without a word, and so has each process that shares its descriptors.
bool is_needed(Survivors& survivors, int supervisor, int line, std::chrono::seconds hang_after) {
  const auto begun = std::chrono::steady_clock::now();
  for (;;) {
    // A program from before there were stand-ins does not dismiss any.
    if (survivors.children().serving_since_ns() != 0 || !survivors.connection().device_fd()) return false;
    const bool late = hang_after.count() > 0 && std::chrono::steady_clock::now() - begun > hang_after;
    if (late && !survivors.children().is_beginning()) (void)sys::send_signal_to(supervisor, SIGKILL);
    pollfd events[] = {{supervisor, POLLIN, 0}, {line, POLLIN, 0}};
    (void)poll(events, 2, kStandInLooksEvery);
    char word = 0;
    const bool is_silent = events[1].revents != 0 && read(line, &word, 1) == 0;
    if (events[1].revents != 0 && !is_silent) return false;
    if (is_silent && sys::has_ended(supervisor)) return true;
    // The line may be closed long before the end; poll() would return at once for it.
    if (is_silent) (void)poll(events, 1, kStandInLooksEvery);
  }
}

}  // namespace

void StandIn::dismiss() {
  if (line_) (void)!write(line_.get(), "", 1);
  line_.reset();
}

StandingIn begin_standing_in(Survivors& survivors, std::chrono::seconds hang_after) {
  const auto supervisor = sys::open_process(getpid());
  int ends[2];
  if (!supervisor || pipe2(ends, O_CLOEXEC) != 0) {
    log_warning("no process stands in during the upgrade: {}", sys::last_error("pipe2").message);
    return {};
  }
  const UniqueFd heard(ends[0]);
  StandIn line{UniqueFd(ends[1])};
  const pid_t between = fork();
  if (between > 0) {
    (void)waitpid(between, nullptr, 0);
    return {.line = std::move(line), .is_stand_in = false};
  }
  if (between < 0 || fork() != 0) {
    if (between == 0) _exit(0);
    log_warning("no process stands in during the upgrade: {}", sys::last_error("fork").message);
    return {};
  }
  line = {};
  if (!is_needed(survivors, supervisor->get(), heard.get(), hang_after)) _exit(0);
  return {.line = {}, .is_stand_in = true};
}

}  // namespace kvcachefs
