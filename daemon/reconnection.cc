#include "daemon/reconnection.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fault_point.h"
#include "base/key_value.h"
#include "base/log.h"
#include "base/sys.h"
#include "base/sys_beneath.h"
#include "base/sys_disk.h"
#include "base/sys_mount.h"
#include "daemon/child.h"
#include "daemon/running_daemon.h"
#include "fs/backing.h"
#include "fs/mounts.h"

namespace kvcachefs {
namespace {

constexpr std::string_view kForgotten = "//deleted";  // in mountinfo, of the root of a mount
constexpr uint64_t kBindPauseNs = 1'000'000'000;
constexpr std::chrono::milliseconds kKillPatience(100), kKillPause(1);
constexpr int kBindTries = 10;

// The flags of mount(2) in the options of a mount.
unsigned long flags_of(std::string_view options) {
  constexpr std::pair<std::string_view, unsigned long> kFlags[] = {{"ro", MS_RDONLY},
                                                                   {"nosuid", MS_NOSUID},
                                                                   {"nodev", MS_NODEV},
                                                                   {"noexec", MS_NOEXEC},
                                                                   {"nosymfollow", MS_NOSYMFOLLOW},
                                                                   {"noatime", MS_NOATIME},
                                                                   {"nodiratime", MS_NODIRATIME}};
  unsigned long flags = 0;
  while (!options.empty()) {
    const std::string_view option = take_part(options, ',');
    for (const auto& [name, flag] : kFlags)
      if (option == name) flags |= flag;
  }
  return flags;
}

bool lies_below(const std::string& directory, const std::string& above) {
  return directory.size() > above.size() && directory.starts_with(above) && directory[above.size()] == '/';
}

bool is_stale(const MountPoint* mount) {
  return mount != nullptr && mount->type == kFileSystemType && is_dead_mount(mount->directory);
}

}  // namespace

bool Reconnection::is_needed() const {
  const auto device = survivors_.connection().device_fd();
  if (!device) return false;
  return !is_connected(*device) || !survivors_.connection().has_init() ||
         !survivors_.children().may_succeed();
}

// Another daemon's mount may have taken the place of this one's. Before Linux 6.8 that cannot be told.
bool Reconnection::is_ours(const MountPoint& base) const {
  const std::string device = device_of_connection(getpid(), *survivors_.connection().device_fd());
  return base.type == kFileSystemType && (device.empty() || device == base.device);
}

Result<bool> Reconnection::connect() {
  const std::string where = survivors_.connection().mount_point();
  auto mounts = read_mounts();
  const MountPoint* const base = mounts ? find_mount(*mounts, where) : nullptr;
  if (!mounts) return pass(mounts);
  if (base == nullptr || !is_ours(*base)) return false;
  const bool was_aborted = !is_connected(*survivors_.connection().device_fd());
  auto device = open_fuse_device();
  if (!device) return pass(device);
  end_binding();
  runtime_.note_stale_mounts(base->device);
  // The old connection may live, though no process can serve it: it ends with its last descriptor.
  if (auto mounted = replace_connection(device->get(), where); !mounted) return pass(mounted);
  const unsigned long flags = flags_of(base->options);
  if ((flags & ~(MS_NOSUID | MS_NODEV)) != 0)
    (void)sys::mount("none", where.c_str(), "", MS_REMOUNT | MS_BIND | flags, nullptr);
  (void)sys::set_mount_shared(where, !base->peer_group.empty());
  close_backings(*survivors_.connection().device_fd(), survivors_);
  survivors_.reconnected(device->release());
  bindings_ = 0;
  bind_at_ns_ = 0;
  disconnected_ns_ = 0;
  if (was_aborted)
    log_warning(
        "the connection was aborted (umount -f of a mount, or its abort file): a new one is mounted at {}",
        where);
  else
    log_warning("the connection cannot be taken over: a new one is mounted at {}", where);
  return true;
}

bool Reconnection::is_outlived() {
  const auto device = survivors_.connection().device_fd();
  const uint64_t now = now_ns();
  if (!device || is_connected(*device))
    disconnected_ns_ = 0;
  else if (disconnected_ns_ == 0)
    disconnected_ns_ = now;
  const auto patience_ns = static_cast<uint64_t>(std::chrono::nanoseconds(kEndPatience).count());
  return disconnected_ns_ != 0 && now - disconnected_ns_ > patience_ns;
}

void Reconnection::bind_mounts() {
  if (binder_ > 0) {
    if (waitpid(binder_, nullptr, WNOHANG) == 0) return;
    binder_ = -1;
    bind_at_ns_ = now_ns() + kBindPauseNs;
  }
  if (bindings_ == kBindTries || now_ns() < bind_at_ns_ || !runtime_.has_stale_mounts()) return;
  ++bindings_;
  binder_ = start_binding();
  bind_at_ns_ = now_ns() + kBindPauseNs;
}

void Reconnection::stop_binding() const {
  if (binder_ > 0) (void)::kill(binder_, SIGKILL);
}

// The process that binds mounts forgets all noted ones at its end, so it must end before further mounts are
// noted. A killed process that still waits for an answer does nothing after it.
void Reconnection::end_binding() {
  stop_binding();
  for (auto waited = kKillPause * 0; waited < kKillPatience; waited += kKillPause) {
    if (binder_ <= 0 || waitpid(binder_, nullptr, WNOHANG) != 0) break;
    std::this_thread::sleep_for(kKillPause);
  }
  binder_ = -1;
}

// The process exits with 0 if no mount has to be tried again.
pid_t Reconnection::start_binding() const {
  std::fflush(nullptr);
  const pid_t process = fork_sharing_descriptors();
  if (process != 0) return process;
  prctl(PR_SET_NAME, "kvcachefs-bind");
  leave_shared_descriptors();
  _exit(bind_all() ? 0 : 1);
}

// Binds in the order of the mount table, so each mount comes after the mounts that it lies in.
bool Reconnection::bind_all() const {
  const auto wanted = runtime_.stale_mounts();
  if (!wanted) return log_error("{}", wanted.error().message), true;
  const std::string base = survivors_.connection().mount_point();
  std::vector<std::string> renewed{base};
  std::set<std::string> devices;
  size_t bound = 0;
  bool all = true;
  for (const MountPoint& mount : *wanted) {
    devices.insert(mount.device);
    if (mount.directory == base) continue;  // if it is dead again, the next connection comes first
    const auto present = read_mounts();
    if (!present) return false;
    const MountPoint* const there = find_mount(*present, mount.directory);
    const bool replaces = is_stale(there);
    // A mount inside a mount that was detached went with it. Any other missing mount was unmounted by the
    // administrator.
    const bool went_along = there == nullptr && std::ranges::any_of(renewed, [&](const std::string& above) {
                              return lies_below(mount.directory, above);
                            });
    if (!replaces && !went_along) continue;
    if (auto done = bind(mount, replaces); !done) {
      log_error("{}: it is not bound again: {}", mount.directory, sys::error_text(done.error().code));
      // The connection was aborted again, or the process that answers has died before Linux 6.9.
      all = all && !is_daemon_gone(done.error().code);
      continue;
    }
    renewed.push_back(mount.directory);
    ++bound;
  }
  if (!all) return false;
  runtime_.forget_stale_mounts();
  log_warning("{}: a new connection serves there, {} mounts bound again", base, bound);
  for (const std::string& device : devices) {
    auto holders = holders_of(device);
    std::erase_if(holders, [](const Holder& holder) { return !holder.has_mount; });
    if (!holders.empty())
      log_warning(
          "{}: its mounts in other mount namespaces stay dead, as that of {}: they are to be mounted again",
          base, text_of(holders));
  }
  return true;
}

// The path below the base is one that users can change.
Result<void> Reconnection::bind(const MountPoint& wanted, bool replaces) const {
  const std::string base = survivors_.connection().mount_point();
  auto source = sys::open_at(AT_FDCWD, base.c_str(), O_PATH | O_DIRECTORY);
  // The kernel says so of a name that it has forgotten, as it forgets one that a lookup failed of because of
  // the abort. A name that is gone is found to be by the lookup here.
  std::string root = wanted.root;
  if (root.ends_with(kForgotten)) root.resize(root.size() - kForgotten.size());
  if (source && root.size() > 1) source = sys::open_beneath(source->get(), root.c_str() + 1, O_PATH);
  if (!source) return pass(source);
  auto copy = sys::copy_of_mount(source->get());
  if (!copy) return pass(copy);
  auto attached = replaces ? sys::replace_mount(copy->get(), wanted.directory)
                           : sys::attach_mount(copy->get(), wanted.directory);
  if (!attached) return attached;
  fault_point("mount attached");
  auto set = sys::set_mount_flags(copy->get(), flags_of(wanted.options));
  return set ? sys::set_mount_shared(copy->get(), !wanted.peer_group.empty()) : set;
}

}  // namespace kvcachefs
