// Mounts of kvcachefs, as /proc/self/mountinfo lists them (proc(5)). Main thread. Failure: errno and a
// sentence.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs {

// The call unmounts a kvcachefs whose daemon has died from the mount point; EBUSY if a daemon serves there.
Result<void> clean_dead_mount(const std::string& mountpoint);

// The call seals the directory (base/mount_seal.h) on which the file system is about to be mounted. What
// keeps it from that is a warning.
void seal_below(const std::string& mountpoint);

// A new connection to the kernel, which is not mounted yet.
Result<UniqueFd> open_fuse_device();

// False once the connection has ended: its file system is unmounted everywhere, or it was aborted.
bool is_connected(int device_fd);

// The call mounts the file system of a connection (a descriptor of /dev/fuse), either a new one or, since
// Linux 5.14, one that is mounted elsewhere already.
Result<void> mount_connection(int device_fd, const std::string& mountpoint);
// The call mounts a new connection where another is mounted, which is detached. From Linux 6.5 on the
// directory below is never visible in between.
Result<void> replace_connection(int device_fd, const std::string& mountpoint);

// The result is `MAJOR:MINOR` of the kvcachefs that is mounted there; empty if there is none.
std::string device_at(const std::string& mountpoint);
// The places where the connection's file system, which has or had this device, is mounted and a path leads to
// it, bind mounts included, the newest first. A file system ends with its last mount or by MNT_FORCE, and
// then the number of its device may be another's: of an ended connection only mounts without a server are
// listed. Without a descriptor (-1) it counts as connected.
std::vector<std::string> mount_points_of(const std::string& device, int device_fd);

}  // namespace kvcachefs
