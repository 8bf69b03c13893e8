// A ServiceManager speaks to the service manager that started this program: systemd, or another with the same
// protocol. It reports the daemon's state (sd_notify(3)) and takes the descriptors that were kept of a daemon
// that died (sd_listen_fds(3)). Without a service manager it does nothing. Main thread. Failure: a message
// that cannot be delivered is noted in the log.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/unique_fd.h"

namespace kvcachefs {

class ServiceManager {
 public:
  // The constructor takes the kept descriptors out of the environment, so that no child process takes them
  // for its own.
  ServiceManager();

  bool is_there() const { return is_there_; }
  void serving(const std::string& where);
  void ending();
  void alive();  // may be called at any pace; it is passed on at the pace that the service manager asks for

  // A second descriptor of the same name is kept beside the first, until that name is dropped.
  void keep(const std::string& name, int fd);
  void drop(const std::string& name);
  // The kept descriptors by name; only the first call returns them.
  std::map<std::string, UniqueFd> take_kept() { return std::move(kept_); }

 private:
  void tell(const std::string& state);

  std::map<std::string, UniqueFd> kept_;
  bool is_there_ = false;
  uint64_t pace_ns_ = 0;  // 0: the service manager does not ask for signs of life
  uint64_t told_ns_ = 0;
};

}  // namespace kvcachefs
