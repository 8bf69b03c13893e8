#include "daemon/read_only_watch.h"

#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "base/mountinfo.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPaceNs = 5'000'000'000;  // a machine may have thousands of mounts to read

}  // namespace

void ReadOnlyWatch::look() {
  const uint64_t now = now_ns();
  if (now < next_ns_) return;
  next_ns_ = now + kPaceNs;
  const auto mounts = read_mounts();
  const MountPoint* const mount = mounts ? find_mount(*mounts, mountpoint_) : nullptr;
  if (mount == nullptr || mount->type != kFileSystemType) return;
  if (is_read_only_everywhere(*mount) == is_read_only_) return;
  is_read_only_ = !is_read_only_;
  if (is_read_only_)
    log_warning("{}: all pools are read-only since a remount; `mount -o remount,rw {}` takes it back",
                mountpoint_, mountpoint_);
  else
    log_info("{}: the pools take writes again", mountpoint_);
}

}  // namespace kvcachefs
