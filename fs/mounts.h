// Mounts of ours as /proc/self/mountinfo lists them (proc(5)). Main thread. Failure: errno and a sentence.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

// Unmounts a kvcachefs whose daemon has died off the mount point; EBUSY if a live one serves there.
Result<void> clean_dead_mount(const std::string& mountpoint);

// `MAJOR:MINOR` of the file system that is mounted there; empty if there is none.
std::string device_at(const std::string& mountpoint);
// Where the file system of that device is mounted and a path leads to it, bind mounts included, the newest
// first.
void unmount_everywhere(const std::string& mountpoint);  // what is mounted there, wherever else it is
std::vector<std::string> mount_points_of(const std::string& device);

}  // namespace kvcachefs
