// The scope of its own in which systemd keeps the daemon that the mount helper starts (systemd.scope(5)). In
// the mount unit of an fstab line, whose control group the helper is in, the daemon would count as that one
// mount's, be left over when that is unmounted, and be ended by nothing before its disk is to be unmounted.
// One thread. Failure: where systemd does not run there is no scope.
#pragma once

#include <string>
#include <vector>

#include "daemon/mount_helper/arguments.h"

namespace kvcachefs {

inline constexpr std::string_view kSlice = "kvcachefs.slice";

// The words that begin a command that is to run in a scope, those that start the daemon excluded. The disks
// of the pool's tier are mounted before the scope begins, and unmounted after its end.
std::vector<std::string> scope_words(const MountArguments& arguments);
bool has_scopes();  // systemd runs, and answers root without a message bus

}  // namespace kvcachefs
