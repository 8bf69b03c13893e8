#include "daemon/cli/commands.h"

#include <fmt/format.h>

#include <csignal>
#include <ostream>
#include <string>

#include "base/sys_disk.h"
#include "base/sys_process.h"
#include "daemon/running_daemon.h"

namespace kvcachefs {
namespace {

constexpr double kPatienceS = 120;  // the daemon first writes what it must keep, for a minute at most
constexpr double kLookS = 0.1;

// The result is false if the daemon has not ended in time.
CliResult<bool> end_daemon(const std::string& directory, pid_t pid, const CliEnvironment& environment) {
  // The pidfd is of the process that has the number now, and the signal goes to that process alone. If
  // find_daemon() finds another process after that, the daemon has ended.
  Result<UniqueFd> process = sys::open_process(pid);
  const auto present = find_daemon(directory);
  if (!process || !present || present->pid != pid) return true;
  const auto sent = sys::send_signal_to(process->get(), SIGTERM);
  if (!sent && sent.error().code != ESRCH)
    return stop(kFailure, fmt::format("process {}: {}", pid, sys::error_text(sent.error().code)));
  double waited_s = 0;
  while (!sys::has_ended(process->get()) && waited_s < kPatienceS && environment.wait(kLookS))
    waited_s += kLookS;
  return sys::has_ended(process->get());
}

}  // namespace

CliResult<void> stop_daemon(const CliArguments& arguments, const CliEnvironment& environment) {
  const CliResult<std::string> mountpoint =
      mount_point_of(arguments, environment,
                     "no kvcachefs is mounted: say where one was with --mount, to stop it all the same");
  if (!mountpoint) return std::unexpected(mountpoint.error());
  const std::string directory = RuntimeDir::directory_of(arguments.runtime_dir, *mountpoint);
  const auto daemon = find_daemon(directory);
  if (!daemon)
    return stop(kNotMounted, fmt::format("no kvcachefsd that can be looked at serves {} with runtime_dir={}",
                                         *mountpoint, arguments.runtime_dir));
  const auto holders = holders_of(daemon->device);
  if (!holders.empty() && !arguments.force)
    return stop(kFailure, fmt::format("{} is in use by {}; --force stops it all the same, and they get "
                                      "ENOTCONN",
                                      *mountpoint, text_of(holders)));
  const CliResult<bool> ended = end_daemon(directory, daemon->pid, environment);
  if (!ended) return std::unexpected(ended.error());
  if (!*ended)
    return stop(kFailure, fmt::format("process {} has not ended yet; its log may say why", daemon->pid));
  environment.out << *mountpoint << ": stopped\n";
  return {};
}

}  // namespace kvcachefs
