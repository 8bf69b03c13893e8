// mount.kvcachefs: what `mount -t kvcachefs POOL DIR` runs. Sees to it that a daemon serves and has the pool,
// and binds the pool's directory at DIR. One thread; helpers that run at once take turns by a lock file.
// Fails with a sentence; the exit code is mount(8)'s: 1 used wrongly, 2 the system refused, 32 nothing is
// mounted.
#pragma once

#include <string>
#include <vector>

#include "base/mountinfo.h"
#include "base/result.h"
#include "daemon/cli/mount_tree.h"
#include "daemon/mount_helper/arguments.h"

namespace kvcachefs {

// `NAME:key=value,…`
std::string pool_spec(const MountArguments& arguments);
// kvcachefsd's arguments, its own name first.
std::vector<std::string> daemon_command(const MountArguments& arguments);
// Settings that are asked for and that the pool, which exists, has otherwise: `size is 16G, not 8G`.
std::vector<std::string> differing_settings(const MountTree& tree, const MountArguments& arguments,
                                            uint64_t memory_bytes);
// True if what DIR leads to is the pool's directory in the file system that is mounted at the base.
bool is_bound(const std::vector<MountPoint>& mounts, const MountArguments& arguments);

int run_mount_helper(int argc, const char* const* argv);

}  // namespace kvcachefs
