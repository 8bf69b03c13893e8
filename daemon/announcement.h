// Tells the process that waits for a daemonized start that this one serves, and lets go of that one's
// terminal or pipes: whoever reads them to the end would wait for the daemon's. Main thread. Failure: none is
// told; the log then stays where it was.
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
  void ready(const std::string& runtime_dir) {
    if (!fd_) return;
    log_to(log_path(runtime_dir));
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
