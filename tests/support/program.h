// A Program runs one of the project's programs, or another one, and returns its output. Any thread. Throws
// std::runtime_error if the program cannot be started; wait() kills a program that does not end by the
// deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace kvcachefs::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal if a signal ended the program
  std::string out;
  std::string error;
};

// The path of a program of this build; a name with a slash is a path already.
std::string program_path(const std::string& name);

class Program {
 public:
  explicit Program(const std::vector<std::string>& command);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  Outcome wait(std::chrono::milliseconds deadline = std::chrono::seconds(300));

 private:
  pid_t pid_ = -1;
  std::string files_;  // prefix of its output files, which processes that it leaves running may hold open
};

Outcome run(const std::vector<std::string>& command);

// Stops a process, and waits until all its threads have stopped: SIGSTOP reaches them one after the other,
// and one of them may serve another request meanwhile. Returns 0, or the errno; ETIMEDOUT after 10 s.
int stop_process(pid_t pid);

}  // namespace kvcachefs::test
