// Runs one of the project's programs, or another, and gives back what it printed. Any thread. Throws
// std::runtime_error if it cannot be started; one that does not end is killed at the deadline.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace kvcachefs::test {

struct Outcome {
  int exit_code = -1;  // 128 + signal for one that a signal ended
  std::string out;
  std::string error;
};

// A name without a slash is one of the build's own programs.
class Program {
 public:
  explicit Program(const std::vector<std::string>& command);
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  Outcome wait(std::chrono::milliseconds deadline = std::chrono::seconds(60));

 private:
  pid_t pid_ = -1;
  std::string
      files_;  // prefix of the files that its output goes to: what it leaves running may hold them open
};

Outcome run(const std::vector<std::string>& command);

}  // namespace kvcachefs::test
