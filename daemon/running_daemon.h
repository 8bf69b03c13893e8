// A kvcachefsd that runs, found by another process although its mount may be gone from here, and the
// processes that keep its file system alive: a mount lives on in other mount namespaces, and as long as files
// of it are open. Any thread; a search takes some milliseconds for each thousand processes. Failure: a
// process that the caller may not look at is not found.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "base/result.h"
#include "daemon/runtime_dir.h"

namespace kvcachefs {

struct RunningDaemon {
  pid_t pid = -1;      // the supervisor if there is one
  int device_fd = -1;  // its connection to the kernel, as a number in that process
  std::string device;  // `MAJOR:MINOR` of what it serves; empty if the kernel does not tell
};
// The daemon that has this directory open (RuntimeDir::directory_of); ESRCH if no process has.
Result<RunningDaemon> find_daemon(const std::string& directory);

// `MAJOR:MINOR` of the file system of a connection, a descriptor of /dev/fuse of that process; empty if the
// kernel does not tell (before Linux 6.8).
std::string device_of_connection(pid_t process, int fd);
// `MAJOR:MINOR` of what this process serves; empty if it has no connection, or the kernel does not tell.
std::string device_served_by(pid_t process);

struct Holder {
  pid_t pid = -1;
  std::string command;     // the process's name (comm in proc(5))
  bool has_mount = false;  // in its mount namespace, which is another
};
// The processes that have a file of the device open, or their working or root directory on it, and the first
// process found of each other mount namespace in which the device is mounted. A mount there does not count if
// it goes together with this namespace's mounts, as mount propagation does it.
std::vector<Holder> holders_of(const std::string& device);
// The form is `process 17 (python3), process 18 (sh) and 3 more`.
std::string text_of(const std::vector<Holder>& holders);

}  // namespace kvcachefs
