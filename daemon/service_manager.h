// What is told to the service manager that has started this program, systemd or another that speaks its
// protocol (sd_notify(3)), and what it has kept of a daemon that died (sd_listen_fds(3)). Where there is none
// nothing is told. Main thread. Failure: what cannot be told is told to the log.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/unique_fd.h"

namespace kvcachefs {

class ServiceManager {
 public:
  // Takes what is kept out of the environment, so that nobody else takes it for his.
  ServiceManager();

  void serving(const std::string& where);
  void ending();
  void alive();  // as often as one likes: it is handed on at the pace that is wanted

  // A second one of the same name is kept beside the first until that name is dropped.
  void keep(const std::string& name, int fd);
  void drop(const std::string& name);
  // By name; taken once.
  std::map<std::string, UniqueFd> take_kept() { return std::move(kept_); }

 private:
  void tell(const std::string& state);

  std::map<std::string, UniqueFd> kept_;
  uint64_t pace_ns_ = 0;  // 0: nobody waits for a sign of life
  uint64_t told_ns_ = 0;
};

}  // namespace kvcachefs
