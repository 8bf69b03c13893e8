// The parts of a report that come from the serving process: how it was started, the configuration that it
// reads, and its log. One thread. Failure: errno and a sentence; a caller that may not look at the process
// (ptrace(2)) gets neither its configuration nor its log.
#pragma once

#include <sys/types.h>

#include <string>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

// False for a number that a daemon has in another PID namespace, and another process here: a daemon is
// root's, and has its name.
bool is_daemon(pid_t process);

Result<std::string> command_line_of(pid_t process);  // its words, with spaces between

// The files that a command line with --config names, each under its path; empty if it names none. The daemon
// may have another root directory than the caller.
Result<std::string> configuration_files_of(pid_t process);
// A path is that of a process with this root directory, and may be relative to it.
Result<std::string> configuration_files_in(const std::string& root, const std::string& named);
// The value of --config among words that each end with a zero byte, as /proc has them.
std::string config_named_in(std::string_view words);

struct DaemonLog {
  std::string place;
  Result<std::string> end;  // its last lines
};
// What standard error of the process leads to: a file, or the journal of its service. `file` is for a caller
// who may not see that.
DaemonLog log_of(pid_t process, const std::string& file);
DaemonLog log_in(const std::string& file);
DaemonLog journal_of(const std::string& service);
// The service of systemd that /proc/PID/cgroup tells of; empty: none.
std::string service_in(std::string_view cgroups);

}  // namespace kvcachefs
