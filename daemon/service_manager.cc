#include "daemon/service_manager.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <systemd/sd-daemon.h>

#include <cstdlib>

#include "base/clock.h"
#include "base/log_limit.h"
#include "base/sys_disk.h"

namespace kvcachefs {

ServiceManager::ServiceManager() {
  char** names = nullptr;
  const int count = sd_listen_fds_with_names(1, &names);
  for (int i = 0; i < count; ++i) {
    UniqueFd fd(SD_LISTEN_FDS_START + i);
    (void)fcntl(fd.get(), F_SETFD, FD_CLOEXEC);
    kept_[names[i]] = std::move(fd);
    std::free(names[i]);
  }
  std::free(names);
  is_there_ = std::getenv("NOTIFY_SOCKET") != nullptr;
  uint64_t within_us = 0;
  // The pace is a quarter of the watchdog's time. Half of it, as sd_watchdog_enabled(3) recommends, would
  // leave one chance only.
  if (sd_watchdog_enabled(0, &within_us) > 0) pace_ns_ = within_us * 1000 / 4;
}

void ServiceManager::tell(const std::string& state) {
  static LogLimit limit;
  if (const int told = sd_notify(0, state.c_str()); told < 0)
    limit.warning("the service manager does not hear {}: {}", state, sys::error_text(-told));
}

void ServiceManager::serving(const std::string& where) {
  tell(fmt::format("READY=1\nSTATUS=serves {}", where));
}

void ServiceManager::ending() {
  tell("STOPPING=1");
}

void ServiceManager::alive() {
  if (pace_ns_ == 0 || now_ns() - told_ns_ < pace_ns_) return;
  told_ns_ = now_ns();
  tell("WATCHDOG=1");
}

void ServiceManager::keep(const std::string& name, int fd) {
  // FDPOLL=0 keeps the service manager from polling the descriptor: it would take the kernel's end of a
  // connection for a reason to drop the descriptor.
  const std::string state = fmt::format("FDSTORE=1\nFDPOLL=0\nFDNAME={}", name);
  if (const int told = sd_pid_notify_with_fds(0, 0, state.c_str(), &fd, 1); told < 0)
    log_warning("the service manager does not keep {}: {}", name, sys::error_text(-told));
}

void ServiceManager::drop(const std::string& name) {
  tell(fmt::format("FDSTOREREMOVE=1\nFDNAME={}", name));
}

}  // namespace kvcachefs
