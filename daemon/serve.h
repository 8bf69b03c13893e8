// The serving process from its first pool to its last: constructs, wires, serves, and takes down in reverse.
// It is the supervisor's child, or without a supervisor the process itself. One thread, which starts the
// others. Failure: a message in the log and an exit status; a successor that cannot take over ends without
// destructors.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <functional>

#include "daemon/announcement.h"
#include "daemon/config.h"
#include "daemon/runtime_dir.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

inline constexpr int kExitFailure = 1;

// These end the service. They are blocked in all threads, and serve() waits for them.
sigset_t ending_signals();

// Serving tells its progress to these. Without a supervisor the service manager hears of this process itself.
struct Audience {
  Announcement& announcement;
  pid_t supervisor = 0;
  unsigned handovers = 0;  // how many there were lately for a disk, in vain
  std::function<void()> served = [] {};
  std::function<void()> gets_on = [] {};
};

// Returns the exit status when a signal has asked for the end, or an umount from outside has ended the
// connection. `generation`: how many processes have served this mount before.
int serve(const Config& config, const RuntimeDir& runtime, Survivors& survivors, uint32_t generation,
          const Audience& audience);

}  // namespace kvcachefs
