#include "base/sys_mount.h"

#include <fcntl.h>
#include <sys/mount.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sys.h"

namespace kvcachefs::sys {
namespace {

// linux/mount.h, which does not go together with sys/mount.h before glibc 2.37, and lacks the last before
// Linux 6.5.
constexpr unsigned kOpenTreeClone = 1;
constexpr unsigned kOpenTreeCloexec = O_CLOEXEC;
constexpr unsigned kMoveFromEmptyPath = 0x4;
constexpr unsigned kMoveBeneath = 0x200;

Result<void> attach(int copy, const std::string& target, unsigned flags) {
  if (syscall(SYS_move_mount, copy, "", AT_FDCWD, target.c_str(), kMoveFromEmptyPath | flags) != 0)
    return std::unexpected<Error>(last_error("mount " + target));
  return {};
}

}  // namespace

Result<UniqueFd> copy_of_mount(int fd) {
  const long copy = syscall(SYS_open_tree, fd, "", kOpenTreeClone | kOpenTreeCloexec | AT_EMPTY_PATH);
  if (copy < 0) return std::unexpected<Error>(last_error("open_tree"));
  return UniqueFd(static_cast<int>(copy));
}

Result<void> attach_mount(int copy, const std::string& target) {
  return attach(copy, target, 0);
}

Result<void> replace_mount(int copy, const std::string& target) {
  if (attach(copy, target, kMoveBeneath)) return unmount(target.c_str(), MNT_DETACH);
  if (auto gone = unmount(target.c_str(), MNT_DETACH); !gone) return gone;
  return attach(copy, target, 0);
}

Result<void> set_mount_flags(int copy, unsigned long flags) {
  return mount("none", ("/proc/self/fd/" + std::to_string(copy)).c_str(), "", MS_REMOUNT | MS_BIND | flags,
               nullptr);
}

}  // namespace kvcachefs::sys
