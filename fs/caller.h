// A Caller is the thread that makes a request, as proc(5) shows it. The kernel checks file modes alone.
// Whether uid 0 is that of a container, and whether the thread may do what only the host's administrator may,
// is checked here.
//
// A thread that waits for the answer to a request that was read from the device can neither end nor change
// its rights (fs/fuse/dev.c, request_wait_answer), so what proc(5) shows is true of it. A thread that does
// not wait (asynchronous I/O) may have ended, and its number may be another thread's. process() therefore
// tells a process from all others.
//
// Thread safety: a Caller is constant; any thread. Failure: ESRCH for a thread that cannot be seen from the
// daemon's PID namespace, else as proc(5). A thread that cannot be read is trusted with nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs {

class Caller {
 public:
  static Result<Caller> of(pid_t thread);
  // The user of a request: `told`, as the kernel reports it, or the user in proc(5) where mapped ids are
  // allowed and the kernel reports none (fs/mapped_ids.h); -1 if neither is known.
  static uid_t user_of(pid_t thread, uid_t told);

  // True if the thread has the capability on the host, that is, in the daemon's own user namespace.
  bool may(int capability) const;
  bool is_administrator() const;  // CAP_SYS_ADMIN on the host
  bool in_group(gid_t group) const;
  std::optional<pid_t> group() const;  // the thread's process
  std::string groups() const;          // all of them, as proc(5) has them
  bool has_signal() const;             // one that it does not block waits for it
  uid_t user() const;                  // the user id for file-system calls; -1 if it cannot be read
  // The number identifies the thread's process by its number and its start time; another process gets the
  // same one after hours at the earliest. It fits in kProcessBits and is not 0.
  static constexpr int kProcessBits = 42;
  Result<uint64_t> process() const;

 private:
  Caller(UniqueFd directory, std::string status)
      : directory_(std::move(directory)), status_(std::move(status)) {}

  UniqueFd directory_;  // in /proc: stays this thread's when another thread gets its number
  std::string status_;
};

}  // namespace kvcachefs
