// An Announcement tells the process that waits for a daemonized start (`--daemonize`) that the daemon serves.
// It also moves the daemon off the terminal or pipes that it was started with: otherwise a program that reads
// such a pipe to its end would wait until the daemon ends. Main thread. Failures are not reported: if the log
// file cannot be opened, stderr stays where it was.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "base/sys.h"
#include "base/unique_fd.h"
#include "daemon/log_file.h"

namespace kvcachefs {

class Announcement {
 public:
  explicit Announcement(int fd) : fd_(fd) {}
  void ready(const std::string& log) {
    if (!fd_) return;
    log_to(log);
    if (auto null = sys::open_at(AT_FDCWD, "/dev/null", O_RDWR)) {
      (void)dup2(null->get(), STDIN_FILENO);
      (void)dup2(null->get(), STDOUT_FILENO);
    }
    (void)!write(fd_.get(), "1", 1);
    fd_.reset();
  }

 private:
  UniqueFd fd_;
};

}  // namespace kvcachefs
