#include "fs/mounts.h"

#include <sys/mount.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/log.h"
#include "base/mountinfo.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

std::vector<MountPoint> mount_table() {
  auto text = sys::read_text("/proc/self/mountinfo");
  return text ? parse_mountinfo(*text) : std::vector<MountPoint>();
}

}  // namespace

Result<void> clean_dead_mount(const std::string& mountpoint) {
  // One on top of another, should several daemons have died there.
  for (int layer = 0; layer < 8; ++layer) {
    const auto mounts = mount_table();
    const MountPoint* mount = find_mount(mounts, mountpoint);
    if (mount == nullptr || mount->type != kFileSystemType) return {};
    // Attributes are cached and outlive the daemon; what a file system has free is always asked for.
    // ENOTCONN it is in the end; the others come over io_uring, while the rings come down.
    std::error_code code;
    (void)std::filesystem::space(mountpoint, code);
    const int error = code.value();
    if (error != ENOTCONN && error != ECONNABORTED && error != ECANCELED)
      return fail(EBUSY, mountpoint + ": a kvcachefs serves there already");
    log_info("{}: cleaning up the mount of a daemon that died", mountpoint);
    if (auto done = sys::unmount(mountpoint.c_str(), MNT_DETACH); !done) return done;
  }
  return {};
}

std::string device_at(const std::string& mountpoint) {
  const auto mounts = mount_table();
  const MountPoint* mount = find_mount(mounts, mountpoint);
  return mount == nullptr ? "" : mount->device;
}

void unmount_everywhere(const std::string& mountpoint) {
  for (const std::string& target : mount_points_of(device_at(mountpoint)))
    (void)sys::unmount(target.c_str(), MNT_DETACH);
}

std::vector<std::string> mount_points_of(const std::string& device) {
  const auto mounts = mount_table();
  std::vector<std::string> result;
  for (const MountPoint& mount : mounts) {
    if (mount.device != device || device.empty()) continue;
    if (find_mount(mounts, mount.directory)->device == device)
      result.push_back(mount.directory);
    else
      log_warning("{}: something else is mounted over it, and both stay", mount.directory);
  }
  std::ranges::reverse(result);
  return result;
}

}  // namespace kvcachefs
