// What another process has open, and where it is; and the groups of users. The caller needs the right to look
// at the process (ptrace(2)). Any thread; no call waits for the other process, nor for a file system that may
// not answer. Failure: errno.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs::sys {

// The entries of a directory of /proc whose names are numbers, sorted; an error if it was not read to the
// end.
Result<std::vector<int>> numbers_in(const std::string& directory);
sigset_t signal_set(std::initializer_list<int> signals);
// True if one of these blocked signals has come for this process.
bool has_pending(std::initializer_list<int> signals);
// From here on the process's mounts are its own: they reach no other process, and end with it. ENOSYS and
// EPERM: a container's rights. The process must have one thread.
Result<void> take_own_mounts();
Result<UniqueFd> open_process(pid_t process);  // a pidfd, readable when the process has ended
// A copy of the other process's descriptor `fd`, for the same open file.
Result<UniqueFd> copy_descriptor_of(pid_t process, int fd);
// The signal goes to that process alone, also if its number has another process by now. Fails with ESRCH.
Result<void> send_signal_to(int process, int signal);  // of open_process
bool has_ended(int process);                           // `process` is a descriptor from open_process()
// The file that a path leads to, for example a magic link of /proc.
struct FileIdentity {
  std::string device;  // `MAJOR:MINOR`
  uint64_t ino = 0;
  bool operator==(const FileIdentity&) const = default;
};
Result<FileIdentity> identity_of(const std::string& path);

// By its number or by its name (getgrnam(3)); none: there is no such group.
std::optional<gid_t> group_number(const std::string& text);

}  // namespace kvcachefs::sys
