// The systemd units of the daemon that the mount helper starts. The daemon runs in a scope of its own
// (systemd.scope(5)). In the helper's control group, that of an fstab line's mount unit, the daemon would
// count as part of that one mount: the unmount would leave it over, and nothing would end it before its disk
// is unmounted. The disks of a pool that is added to a serving daemon are bound to the daemon's unit by
// another unit. One thread. Failure: without systemd there are no units.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "daemon/mount_helper/arguments.h"

namespace kvcachefs {

inline constexpr std::string_view kSlice = "kvcachefs.slice";

// Returns the words that run a command in a scope; the words of the command follow them. systemd mounts the
// disks of the pool's tier before the scope begins, and unmounts them after its end.
std::vector<std::string> scope_words(const MountArguments& arguments);
// Returns the unit whose stop ends this daemon alone: a unit of kvcachefs.slice, such as the scope above, or
// kvcachefs.service. The name is empty for a daemon that a shell, a container or another service has started:
// such a daemon must not be stopped for a disk.
std::string unit_of(pid_t daemon);
// Returns the command that starts `disk_unit`; it is empty if the pool has no disk. The unit has systemd
// mount the disks of the pool's tier, and end `daemon_unit` before it unmounts them. The command does not
// wait for the disks.
std::vector<std::string> disk_unit_command(const MountArguments& arguments, const std::string& daemon_unit,
                                           const std::string& disk_unit);
bool has_scopes();  // systemd runs, and answers root without a message bus

}  // namespace kvcachefs
