#include "tests/support/program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <stdexcept>

#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {

std::string program_path(const std::string& name) {
  if (name.find('/') != std::string::npos) return name;
  const std::string folder = environment("KVCACHEFS_BIN_DIR");
  return (folder.empty() ? KVCACHEFS_BIN_DIR : folder) + "/" + name;
}

Program::Program(const std::vector<std::string>& command) : files_("/tmp/kv-program-XXXXXX") {
  const int marker = ::mkstemp(files_.data());
  if (marker < 0) throw std::runtime_error("mkstemp " + files_ + " failed");
  ::close(marker);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, (files_ + ".out").c_str(), O_WRONLY | O_CREAT,
                                     0600);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, (files_ + ".error").c_str(), O_WRONLY | O_CREAT,
                                     0600);
  const std::string path = program_path(command.front());
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  const int code = ::posix_spawn(&pid_, path.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (code != 0) throw std::runtime_error("cannot start " + path + ": " + error_name(code));
}

Program::~Program() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const char* suffix : {"", ".out", ".error"}) ::unlink((files_ + suffix).c_str());
}

Outcome Program::wait(std::chrono::milliseconds deadline) {
  int status = 0;
  const bool ended = eventually([&] { return ::waitpid(pid_, &status, WNOHANG) == pid_; }, deadline);
  if (!ended) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, &status, 0);
  }
  pid_ = -1;
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_file(files_ + ".out"),
          read_file(files_ + ".error")};
}

Outcome run(const std::vector<std::string>& command) {
  return Program(command).wait();
}

int stop_process(pid_t pid) {
  if (::kill(pid, SIGSTOP) != 0) return errno;
  const auto has_stopped = [](const std::filesystem::directory_entry& thread) {
    const std::string state = read_file(thread.path() / "stat");  // proc(5): after the name in parentheses
    return state.find(") T ") != std::string::npos || state.empty();
  };
  const bool stopped = eventually(
      [&] {
        std::error_code error;
        const std::filesystem::directory_iterator threads("/proc/" + std::to_string(pid) + "/task", error);
        return std::ranges::all_of(begin(threads), end(threads), has_stopped);
      },
      std::chrono::seconds(10));
  return stopped ? 0 : ETIMEDOUT;
}

}  // namespace kvcachefs::test
