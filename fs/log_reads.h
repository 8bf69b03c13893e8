// LogReads are reads of a control file without an end (ControlReader::is_endless()), which wait until there
// is something to read. A thread of their own answers them, so that no server thread waits; they do not count
// as requests in hand. A read whose caller has got a signal is answered with EINTR: the kernel does not tell
// of signals (Session::negotiate()), so proc(5) is asked. run() is for server threads, step() for one worker,
// end() for the main thread. Not over io_uring. Never fails.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/mutex.h"
#include "fs/control/control_file.h"
#include "fs/request.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

class LogReads {
 public:
  // If it may not wait and there is nothing to read, the answer is EAGAIN.
  void run(const Request& request, std::shared_ptr<ControlReader> reader, size_t size, bool may_wait)
      EXCLUDES(mutex_);
  // The call looks once whether what waits can be answered, and waits for a read for `at_most`.
  void step(Survivors& survivors, std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  // What waits gets the end of the file, and so does each read from here on.
  void end() EXCLUDES(mutex_);

 private:
  struct Waiting {
    Request request;
    std::shared_ptr<ControlReader> reader;
    size_t size = 0;
    bool may_wait = true;
    uint64_t begun_ns = 0;
  };
  static bool answered(const Waiting& read, bool looks_for_signal);

  Mutex mutex_;
  Condition condition_;
  bool ended_ GUARDED_BY(mutex_) = false;
  bool has_new_ GUARDED_BY(mutex_) = false;
  bool in_hand_ GUARDED_BY(mutex_) = false;  // the worker has what waits
  std::vector<Waiting> waiting_ GUARDED_BY(mutex_);
  unsigned looks_ = 0;  // only the worker uses it
};

}  // namespace kvcachefs
