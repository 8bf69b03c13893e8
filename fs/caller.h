// Who makes a request: what proc(5) tells of its thread. The kernel checks file modes alone; whom a
// container's uid 0 stands for, and what only the host's administrator may do, is checked here.
//
// A thread that waits for the answer to a request that has been read from the device cannot end or change its
// rights (fs/fuse/dev.c, request_wait_answer), so what is read of it is true of the one who asks. One that
// does not wait (asynchronous I/O) may have ended, and its number be another's: hence process(), which tells
// a process from all others.
//
// Thread safety: a Caller is constant; any thread. Failure: ESRCH for a thread that is not to be seen from
// the daemon's PID namespace, else as proc(5); whoever cannot be read is trusted with nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs {

class Caller {
 public:
  static Result<Caller> of(pid_t thread);

  // Whether it has a capability on the host: in the daemon's own user namespace.
  bool may(int capability) const;
  bool is_administrator() const;  // CAP_SYS_ADMIN there
  bool in_group(gid_t group) const;
  // Of its process, by its number and the time of its start; another has it within hours at the earliest.
  // Fits in kProcessBits, and is not 0.
  static constexpr int kProcessBits = 42;
  Result<uint64_t> process() const;

 private:
  Caller(UniqueFd directory, std::string status)
      : directory_(std::move(directory)), status_(std::move(status)) {}
  std::string_view line(std::string_view key) const;  // of status; empty if it is not there

  UniqueFd directory_;  // of /proc: stays this thread's when its number becomes another's
  std::string status_;
};

}  // namespace kvcachefs
