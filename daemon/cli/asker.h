// An Asker puts a question to a daemon that may hang. A child process waits for the answer, because no signal
// ends a call whose request the daemon has taken. While the child waits, no other is started, and each
// further question fails at once. One thread, in a process that has no other. Failure: ETIMEDOUT and a
// sentence if the daemon does not answer in time; otherwise the error of the question.
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
  // Kills a child that still waits. The child ends at once, or when its call returns.
  ~Asker();
  Asker(const Asker&) = delete;
  Asker& operator=(const Asker&) = delete;

  // Asks the question in a forked copy of this process, which closes all descriptors but its pipe. The
  // sentence names `mount`.
  Result<std::string> ask(const std::string& mount, const Question& question);

 private:
  bool still_waits();
  Result<std::string> answer_of(UniqueFd pipe, const std::string& mount);

  std::chrono::milliseconds patience_;
  pid_t waiting_ = -1;
};

}  // namespace kvcachefs
