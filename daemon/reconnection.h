// A new connection to the kernel in place of an aborted one. `umount -f` of any mount aborts the connection
// of all mounts, and so does the connection's abort file. The supervisor mounts the new connection at the
// base while no process serves. When a process serves again, a further process binds the pools' directories
// again wherever a dead mount of one remains, because looking a pool up needs an answer of the serving
// process. The list of these mounts is kept in the runtime directory, for a supervisor that takes over. Main
// thread. Failure: errno and a sentence; a mount that could not be bound again stays dead, and the log says
// so.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>

#include "base/mountinfo.h"
#include "base/result.h"
#include "daemon/runtime_dir.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

// A process whose connection has ended has this long to begin its own end.
inline constexpr std::chrono::seconds kEndPatience{5};

class Reconnection {
 public:
  Reconnection(Survivors& survivors, const RuntimeDir& runtime) : survivors_(survivors), runtime_(runtime) {}

  // True if no process can go on with the connection: it has ended, its INIT was lost with the process that
  // took it, or the kernel gives the requests of a process that died to no other.
  bool is_needed() const;
  // Mounts a new connection and makes Survivors ready for it. Returns false if the base is not mounted any
  // more.
  Result<bool> connect();
  // Called several times a second. Returns true if the connection ended more than kEndPatience ago: a process
  // that still serves then hangs.
  bool is_outlived();
  // Called several times a second while a process serves. While there are mounts to bind, starts a process
  // that binds them, at most once a second and ten times in all. The supervisor may reap that process, too.
  void bind_mounts();
  void stop_binding() const;

 private:
  bool is_ours(const MountPoint& base) const;
  void end_binding();
  pid_t start_binding() const;
  bool bind_all() const;
  Result<void> bind(const MountPoint& wanted, bool replaces) const;

  Survivors& survivors_;
  const RuntimeDir& runtime_;
  pid_t binder_ = -1;
  int bindings_ = 0;  // tries since the last connection
  uint64_t bind_at_ns_ = 0;
  uint64_t disconnected_ns_ = 0;  // seen first at this time; 0: it is connected
};

}  // namespace kvcachefs
