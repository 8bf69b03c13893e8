#include "fs/backing.h"

#include <sys/ioctl.h>

#include "base/sys.h"

namespace kvcachefs {
namespace {

// Debian 12's linux/fuse.h is older than passthrough; from include/uapi/linux/fuse.h of Linux 6.9.
struct FuseBackingMap {
  int32_t fd;
  uint32_t flags;
  uint64_t padding;
};
constexpr unsigned long kBackingOpen = _IOW(229, 1, FuseBackingMap);
constexpr unsigned long kBackingClose = _IOW(229, 2, uint32_t);

}  // namespace

Result<int32_t> SessionBacking::acquire(int fd) {
  if (!passthrough_) {
    auto copy = sys::duplicate(fd);
    if (!copy) return pass(copy);
    return copy->release();
  }
  FuseBackingMap map{.fd = fd, .flags = 0, .padding = 0};
  auto id = sys::control(device_fd_, kBackingOpen, &map);
  if (!id) return pass(id);
  return *id;
}

void SessionBacking::give_back(int32_t backing) {
  if (!passthrough_) {
    UniqueFd(backing).reset();
    return;
  }
  auto id = static_cast<uint32_t>(backing);
  // Fails only when the connection is gone, and the id with it.
  (void)sys::control(device_fd_, kBackingClose, &id);
}

}  // namespace kvcachefs
