// A service manager as the daemon sees one: what it is told, and what it keeps (sd_notify(3)). It is there
// for the daemons that are started while the object lives. One thread. A failure is recorded with GoogleTest.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::test {

// A service manager: the messages that it got, and the descriptors that it keeps.
class Manager {
 public:
  Manager()
      : path_("/tmp/kv-manager-" + std::to_string(::getpid())),
        socket_(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    ::unlink(path_.c_str());
    EXPECT_EQ(::bind(socket_.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    ::setenv("NOTIFY_SOCKET", path_.c_str(), 1);
  }
  ~Manager() {
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv("WATCHDOG_USEC");
    ::unlink(path_.c_str());
  }
  Manager(const Manager&) = delete;
  Manager& operator=(const Manager&) = delete;

  // listen() takes the messages that have come since the last call.
  void listen() {
    char text[4096];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    for (;;) {
      iovec data{text, sizeof text};
      msghdr message{};
      message.msg_iov = &data;
      message.msg_iovlen = 1;
      message.msg_control = control;
      message.msg_controllen = sizeof control;
      const ssize_t size = ::recvmsg(socket_.fd(), &message, MSG_CMSG_CLOEXEC);
      if (size < 0) return;
      note(std::string(text, static_cast<size_t>(size)), CMSG_FIRSTHDR(&message));
    }
  }
  bool hears(const std::string& line) {
    return eventually([&] {
      listen();
      return lines_.contains(line);
    });
  }
  // The memory, the lock and the connection.
  bool keeps_all() {
    return eventually([&] {
      listen();
      return kept_.size() == 3;
    });
  }
  void forget() { lines_.clear(); }
  const std::map<std::string, File>& kept() const { return kept_; }

 private:
  void note(const std::string& text, const cmsghdr* control) {
    std::string name;
    bool remove = false;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      const std::string line = text.substr(at, end - at);
      lines_.insert(line);
      if (line.starts_with("FDNAME=")) name = line.substr(7);
      remove = remove || line == "FDSTOREREMOVE=1";
      at = end + 1;
    }
    if (remove) kept_.erase(name);
    if (control == nullptr || control->cmsg_type != SCM_RIGHTS) return;
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(control), sizeof fd);
    kept_.insert_or_assign(name, File(fd));
  }

  const std::string path_;
  const File socket_;
  std::set<std::string> lines_;
  std::map<std::string, File> kept_;
};

}  // namespace kvcachefs::test
