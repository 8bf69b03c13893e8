// A process of an ordinary user, which does nothing, for those that look at a caller's rights. One thread;
// the constructor throws std::runtime_error if there is none. Only for root.
#pragma once

#include <grp.h>
#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <vector>

namespace kvcachefs::test {

class UserProcess {
 public:
  UserProcess(uid_t uid, gid_t gid, const std::vector<gid_t>& groups = {}) {
    std::array<int, 2> ready{};
    if (::pipe(ready.data()) != 0) throw std::runtime_error("pipe");
    pid_ = ::fork();
    if (pid_ == 0) {
      const bool is_user = ::setgroups(groups.size(), groups.data()) == 0 &&
                           ::setresgid(gid, gid, gid) == 0 && ::setresuid(uid, uid, uid) == 0;
      if (!is_user || ::write(ready[1], "1", 1) != 1) ::_exit(1);
      for (;;) ::pause();
    }
    ::close(ready[1]);
    char is_ready = 0;
    const bool is_user = ::read(ready[0], &is_ready, 1) == 1;
    ::close(ready[0]);
    if (pid_ > 0 && is_user) return;
    end();
    throw std::runtime_error("no process of another user");
  }
  ~UserProcess() { end(); }
  UserProcess(const UserProcess&) = delete;
  UserProcess& operator=(const UserProcess&) = delete;
  pid_t pid() const { return pid_; }

  // Afterwards its number is no process's.
  void end() {
    if (pid_ <= 0) return;
    (void)::kill(pid_, SIGKILL);
    (void)::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
};

}  // namespace kvcachefs::test
