// Finds out what this machine gives. It tries what can be tried and undone: mounts in a child process that
// has a mount namespace of its own, a ring of io_uring, a nameless file on the disk. Main thread, while it is
// the only one; some seconds at most, and 30 if the kernel does not answer. Failure: what could not be tried
// is among the facts as such.
#pragma once

#include <optional>
#include <string>

#include "daemon/system_check/facts.h"

namespace kvcachefs {

// `disk_path`: a block device, a file that there is or will be, or a directory.
SystemFacts gather_system_facts(const std::optional<std::string>& disk_path);

// The parts of it that stand in files of their own.
MountTrials try_mounts();
DiskPlace look_at_disk(const std::string& path);

}  // namespace kvcachefs
