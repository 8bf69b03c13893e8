// The scope of its own in which systemd keeps the daemon that the mount helper starts (systemd.scope(5)). In
// the mount unit of an fstab line, whose control group the helper is in, the daemon would count as that one
// mount's, be left over when that is unmounted, and be ended by nothing before its disk is to be unmounted.
// The disks of a pool that is added to a daemon that serves are bound to the daemon's unit by another unit.
// One thread. Failure: where systemd does not run there is no scope, and no unit of a daemon.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/mount_helper/arguments.h"

namespace kvcachefs {

inline constexpr std::string_view kSlice = "kvcachefs.slice";

// The words that begin a command that is to run in a scope, those that start the daemon excluded. The disks
// of the pool's tier are mounted before the scope begins, and unmounted after its end.
std::vector<std::string> scope_words(const MountArguments& arguments);
// The unit of a daemon, which systemd stops in order to end that daemon alone: a scope as above, or
// kvcachefs.service. Empty: none. What a shell, a container or another service has started is not to be
// stopped for a disk.
std::string unit_of(pid_t daemon);
// The command that starts `disk_unit`, which has systemd mount the disks of the pool's tier, and end
// `daemon_unit` before it unmounts them. The command does not wait for the disks. Empty: the pool has no
// disk.
std::vector<std::string> disk_unit_command(const MountArguments& arguments, const std::string& daemon_unit,
                                           const std::string& disk_unit);
bool has_scopes();  // systemd runs, and answers root without a message bus

}  // namespace kvcachefs
