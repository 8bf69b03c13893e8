// The mount table of /proc/self/mountinfo (proc(5)), and mount points whose daemon may have died. Any thread.
// Failure: errno and a sentence that names the file; a malformed line is left out.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

inline constexpr std::string_view kFileSystemType = "fuse.kvcachefs";

struct MountPoint {
  std::string device;     // `MAJOR:MINOR`: the same for all mounts of one file system
  std::string root;       // which of its directories is mounted: `/`, or `/POOL` for a pool's bind mount
  std::string directory;  // the mount point
  std::string options;    // of the mount and of the file system
  std::string type;
  std::string source;
  std::string super_options = {};  // of the file system, so of all its mounts
  // The mount's propagation groups (mount_namespaces(7)): the peer group, with which it shares mounts and
  // unmounts, and the master group, from which it receives them. Empty: none.
  std::string peer_group = {};
  std::string master_group = {};
};

// The mounts in the order of the table: of two mounts on one directory the later is on top.
Result<std::vector<MountPoint>> read_mounts(const std::string& file = "/proc/self/mountinfo");

// The topmost mount on exactly this directory; nullptr if no mount is there.
const MountPoint* find_mount(const std::vector<MountPoint>& mounts, std::string_view directory);

// The mount points of whole kvcachefs file systems: for each file system the first one that a path leads to.
// Only root's count (user_id=0): with fusermount3(1) any user mounts a file system that says it is of this
// type.
std::vector<std::string> find_kvcachefs_roots(const std::vector<MountPoint>& mounts);

// True if the file system takes no writes, in none of its mounts (`mount -o remount,ro` without `bind`).
bool is_read_only_everywhere(const MountPoint& mount);

// True for the errors of calls on a mount whose daemon has died: ENOTCONN, and over io_uring, while the rings
// are taken down, also ECONNABORTED and ECANCELED.
bool is_daemon_gone(int code);
// Attributes are cached and outlive the daemon, but the kernel always asks for free space.
bool is_dead_mount(const std::string& directory);

// The result is absolute and without symbolic links. A directory of a dead mount cannot be resolved itself,
// but its parent directory can.
Result<std::filesystem::path> resolve_mount_point(std::string_view text);

// EPERM, and why, for a resolved directory over which kvcachefs is not mounted: `/`, and /proc, /sys and /dev
// with all below them.
Result<void> check_mount_place(const std::filesystem::path& directory);

}  // namespace kvcachefs
