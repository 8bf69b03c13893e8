// A TakeoverWatch tells a process that takes over slowly from one that hangs. A takeover may take minutes
// over millions of entries or a slow disk. A process that hangs makes no step (base/progress.h) and does not
// wait in the kernel either. A process that waits in the kernel, for a disk or for memory, is left alone
// however long that takes: it could not be killed, and the next one would wait for the same. The supervisor's
// thread calls hangs() several times a second. Failure: what cannot be found out counts as a wait.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

namespace kvcachefs {

class TakeoverWatch {
 public:
  void begins(pid_t process);
  // True if the process has made no step for `bound`; a bound of 0 means never. Only 200 ms at most of the
  // time between two looks count, because the process that looks may have been stopped too.
  bool hangs(std::chrono::nanoseconds bound);

 private:
  pid_t process_ = -1;
  uint64_t steps_ = 0;
  uint64_t looked_ns_ = 0;
  uint64_t still_ns_ = 0;    // without a step and without a wait in the kernel
  uint64_t waiting_ns_ = 0;  // without a step, and in the kernel at each look
  bool has_said_ = false;
};

}  // namespace kvcachefs
