// An Asker puts a question to a daemon that may hang. A process of its own waits for the answer, because no
// signal ends a call whose request the daemon has taken. While that process waits, no other is started: each
// further question fails at once. One thread, of a process that has no other. Failure: ETIMEDOUT and a
// sentence if the daemon does not answer in time; else what the question fails with.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs {

class Asker {
 public:
  using Question = std::function<Result<std::string>()>;

  explicit Asker(std::chrono::milliseconds patience) : patience_(patience) {}
  // A process that still waits is killed. It ends at once, or when its call returns.
  ~Asker();
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

  // The question is asked in a copy of this process, which keeps no other descriptor open. `mount` is for the
  // sentence.
  Result<std::string> ask(const std::string& mount, const Question& question);

 private:
  bool still_waits();
  Result<std::string> answer_of(UniqueFd pipe, const std::string& mount);

  std::chrono::milliseconds patience_;
  pid_t waiting_ = -1;
};

}  // namespace kvcachefs
