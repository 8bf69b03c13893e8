// mount.kvcachefs is the program that `mount -t kvcachefs POOL DIR` runs. It starts a daemon if none serves,
// creates the pool if it is missing, and binds the pool's directory at DIR. With `-o remount` it changes the
// flags of the mount at DIR alone. One thread; helpers that run at
// the same time take turns by a lock file. Fails with a sentence and an exit code of mount(8): 1 for wrong
// usage, 2 for a refusal of the system, 32 if nothing was mounted.
#pragma once

#include <string>
#include <vector>

#include "base/mountinfo.h"
#include "daemon/cli/mount_tree.h"
#include "daemon/mount_helper/arguments.h"

namespace kvcachefs {

// The form is `NAME:key=value,…`.
std::string pool_spec(const MountArguments& arguments);
// The arguments of kvcachefsd, beginning with the program's name.
std::vector<std::string> daemon_command(const MountArguments& arguments);
// The settings that `arguments` asks for and that an existing pool has otherwise, each as `size is 16G, not
// 8G`.
std::vector<std::string> differing_settings(const MountTree& tree, const MountArguments& arguments,
                                            uint64_t memory_bytes);
// True if DIR leads to the pool's directory in the file system that is mounted at the base.
bool is_bound(const std::vector<MountPoint>& mounts, const MountArguments& arguments);

int run_mount_helper(int argc, const char* const* argv);

}  // namespace kvcachefs
