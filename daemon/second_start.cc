#include "daemon/second_start.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>

#include <cerrno>
#include <chrono>
#include <string>

#include "base/log.h"
#include "base/mountinfo.h"
#include "base/sys.h"
#include "base/sys_disk.h"
#include "base/sys_process.h"
#include "daemon/cli/mount_tree.h"
#include "daemon/running_daemon.h"
#include "fs/mounts.h"

namespace kvcachefs {
namespace {

constexpr auto kStartLockPatience = std::chrono::seconds(10);

// Starts take turns: two at a time would mount the file system twice.
Result<UniqueFd> take_turn(const std::string& runtime_dir) {
  auto lock = sys::open_at(AT_FDCWD, runtime_dir.c_str(), O_RDONLY | O_DIRECTORY);
  if (!lock) return lock;
  if (auto locked = sys::lock_whole(lock->get(), kStartLockPatience); !locked) return pass(locked);
  return lock;
}

Result<void> mount_connection_of(const RunningDaemon& daemon, const std::string& mountpoint) {
  auto device = sys::copy_descriptor_of(daemon.pid, daemon.device_fd);
  if (!device) return pass(device);
  if (auto mounted = mount_connection(device->get(), mountpoint); !mounted) return mounted;
  auto good = MountTree(mountpoint).check();
  // The device differs if the daemon ended meanwhile and another process has its number.
  if (good && !daemon.device.empty() && device_at(mountpoint) != daemon.device) good = fail(ESTALE);
  if (!good) (void)sys::unmount(mountpoint.c_str(), MNT_DETACH);
  return good;
}

}  // namespace

Result<void> mount_again(const Config& config) {
  const std::string mountpoint = config.mountpoint.native();
  const std::string runtime_dir = config.runtime_dir.native();
  const auto daemon = find_daemon(RuntimeDir::directory_of(runtime_dir, mountpoint));
  if (!daemon) return fail(EBUSY, mountpoint + ": another kvcachefsd serves there, or is about to");
  const auto turn = take_turn(runtime_dir);
  const auto mounts = read_mounts();
  const MountPoint* const present = mounts ? find_mount(*mounts, mountpoint) : nullptr;
  if (!turn || !mounts || (present != nullptr && present->type == kFileSystemType))
    return fail(EBUSY,
                fmt::format("{}: another kvcachefsd, process {}, serves there", mountpoint, daemon->pid));
  const auto holders = holders_of(daemon->device);
  const std::string for_whom =
      fmt::format("kvcachefsd, process {}, serves on{}{}", daemon->pid,
                  holders.empty() ? " although it was unmounted here" : " for ", text_of(holders));
  if (auto mounted = mount_connection_of(*daemon, mountpoint); !mounted)
    return fail(EBUSY,
                fmt::format("{}: {}, and cannot be mounted here again ({}); `kvcachefs --mount {} stop "
                            "--force` ends it",
                            mountpoint, for_whom, sys::error_text(mounted.error().code), mountpoint));
  log_info("{}: {}: it is mounted here again, with the pools that are there", mountpoint, for_whom);
  for (const PoolOptions& pool : config.pools)
    if (!MountTree(mountpoint).has_pool(pool.name))
      log_warning("pool {} is not there: `kvcachefs create {}` makes it", pool.name, pool.name);
  return {};
}

}  // namespace kvcachefs
