#include "fs/mounts.h"

#include <poll.h>
#include <sys/mount.h>

#include <algorithm>
#include <cerrno>

#include "base/log.h"
#include "base/mount_seal.h"
#include "base/mountinfo.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "base/sys_mount.h"

namespace kvcachefs {

bool is_connected(int device_fd) {
  pollfd device{device_fd, 0, 0};
  return poll(&device, 1, 0) == 0;  // POLLERR: fuse_dev_poll() of fs/fuse/dev.c
}

Result<void> clean_dead_mount(const std::string& mountpoint) {
  // Dead mounts may lie on top of each other, if several daemons have died there.
  for (int layer = 0; layer < 8; ++layer) {
    if (device_at(mountpoint).empty()) return {};
    if (!is_dead_mount(mountpoint)) return fail(EBUSY, mountpoint + ": a kvcachefs serves there already");
    log_info("{}: cleaning up the mount of a daemon that died", mountpoint);
    if (auto done = sys::unmount(mountpoint.c_str(), MNT_DETACH); !done) return done;
  }
  return {};
}

void seal_below(const std::string& mountpoint) {
  const auto sealed = seal_mount_point(mountpoint);
  if (!sealed)
    log_warning("{}", sealed.error().message);
  else if (!*sealed)
    log_warning("{} is not empty: it takes writes while it is not mounted, and the mount hides them",
                mountpoint);
}

Result<UniqueFd> open_fuse_device() {
  auto device = sys::open_at(AT_FDCWD, "/dev/fuse", O_RDWR);
  if (!device) return fail(device.error().code, "/dev/fuse: " + sys::error_text(device.error().code));
  return device;
}

Result<void> mount_connection(int device_fd, const std::string& mountpoint) {
  const std::string data = "fd=" + std::to_string(device_fd) +
                           ",rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other";
  return sys::mount("kvcachefs", mountpoint.c_str(), "fuse.kvcachefs", MS_NOSUID | MS_NODEV, data.c_str());
}

Result<void> replace_connection(int device_fd, const std::string& mountpoint) {
  auto mount = sys::new_mount("fuse", {{"source", "kvcachefs"},
                                       {"subtype", "kvcachefs"},
                                       {"fd", std::to_string(device_fd)},
                                       {"rootmode", "40000"},
                                       {"user_id", "0"},
                                       {"group_id", "0"},
                                       {"default_permissions", ""},
                                       {"allow_other", ""}});
  if (mount) return sys::replace_mount(mount->get(), mountpoint);
  if (auto gone = sys::unmount(mountpoint.c_str(), MNT_DETACH); !gone) return gone;
  return mount_connection(device_fd, mountpoint);
}

std::string device_at(const std::string& mountpoint) {
  const auto mounts = read_mounts().value_or(std::vector<MountPoint>());
  const MountPoint* mount = find_mount(mounts, mountpoint);
  // The file system may have been unmounted, and another one may be mounted there now.
  return mount == nullptr || mount->type != kFileSystemType ? "" : mount->device;
}

std::vector<std::string> mount_points_of(const std::string& device, int device_fd) {
  const auto mounts = read_mounts().value_or(std::vector<MountPoint>());
  std::vector<std::string> result;
  for (const MountPoint& mount : mounts) {
    if (mount.device != device || device.empty() || mount.type != kFileSystemType) continue;
    if (find_mount(mounts, mount.directory)->device == device)
      result.push_back(mount.directory);
    else
      log_warning("{}: something else is mounted over it, and both stay", mount.directory);
  }
  if (!is_connected(device_fd))
    std::erase_if(result, [](const std::string& target) { return !is_dead_mount(target); });
  std::ranges::reverse(result);
  return result;
}

}  // namespace kvcachefs
