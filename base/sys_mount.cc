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
constexpr unsigned kCloexec = 1;                               // of fsopen(2) and fsmount(2)
constexpr unsigned kSetFlag = 0, kSetString = 1, kCreate = 6;  // of fsconfig(2)
constexpr unsigned kNosuidNodev = 0x2 | 0x4;

Result<void> attach(int copy, const std::string& target, unsigned flags) {
  if (syscall(SYS_move_mount, copy, "", AT_FDCWD, target.c_str(), kMoveFromEmptyPath | flags) != 0)
    return std::unexpected<Error>(last_error("mount " + target));
  return {};
}

std::string path_of_copy(int copy) {
  return "/proc/self/fd/" + std::to_string(copy);
}

}  // namespace

Result<UniqueFd> copy_of_mount(int fd) {
  const long copy = syscall(SYS_open_tree, fd, "", kOpenTreeClone | kOpenTreeCloexec | AT_EMPTY_PATH);
  if (copy < 0) return std::unexpected<Error>(last_error("open_tree"));
  return UniqueFd(static_cast<int>(copy));
}

Result<UniqueFd> new_mount(const char* type,
                           std::initializer_list<std::pair<const char*, std::string>> options) {
  const UniqueFd made(static_cast<int>(syscall(SYS_fsopen, type, kCloexec)));
  if (!made) return std::unexpected<Error>(last_error("fsopen"));
  for (const auto& [key, value] : options) {
    const char* const text = value.empty() ? nullptr : value.c_str();
    if (syscall(SYS_fsconfig, made.get(), text == nullptr ? kSetFlag : kSetString, key, text, 0) != 0)
      return std::unexpected<Error>(last_error(key));
  }
  if (syscall(SYS_fsconfig, made.get(), kCreate, nullptr, nullptr, 0) != 0)
    return std::unexpected<Error>(last_error("fsconfig"));
  const long mount = syscall(SYS_fsmount, made.get(), kCloexec, kNosuidNodev);
  if (mount < 0) return std::unexpected<Error>(last_error("fsmount"));
  return UniqueFd(static_cast<int>(mount));
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
  return mount("none", path_of_copy(copy).c_str(), "", MS_REMOUNT | MS_BIND | flags, nullptr);
}

Result<void> set_mount_shared(const std::string& mountpoint, bool shared) {
  return mount("none", mountpoint.c_str(), "", static_cast<unsigned long>(shared ? MS_SHARED : MS_PRIVATE),
               nullptr);
}

Result<void> set_mount_shared(int copy, bool shared) {
  return set_mount_shared(path_of_copy(copy), shared);
}

}  // namespace kvcachefs::sys
