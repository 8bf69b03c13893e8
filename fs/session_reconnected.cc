// What a Session does when its connection is aborted, and with one that takes its place.
#include <linux/fuse.h>
#include <poll.h>

#include <cerrno>
#include <thread>
#include <vector>

#include "base/sys.h"
#include "base/sys_disk.h"
#include "fs/mounts.h"
#include "fs/session.h"

namespace kvcachefs {
namespace {

constexpr size_t kInitBufferBytes = 64 << 10;
constexpr int kInitPatienceMs = 10'000;
// MNT_FORCE aborts the connection first, and then the mount goes, if it is not in use (docs/facts.md "What
// umount -f does").
constexpr auto kUnmountTime = std::chrono::milliseconds(200);
constexpr auto kLookPause = std::chrono::milliseconds(10);

}  // namespace

bool Session::was_aborted() const {
  const auto is_mounted = [this] {
    return !mounted_device_.empty() && device_at(options_.mountpoint) == mounted_device_;
  };
  if (is_connected(fuse_session_fd(session_))) return false;
  for (auto waited = kLookPause * 0; waited < kUnmountTime && is_mounted(); waited += kLookPause)
    std::this_thread::sleep_for(kLookPause);
  return is_mounted();
}

// The kernel sends INIT by itself when the file system is mounted, before all else. A connection that ends
// before it counts as negotiated like the one before: what is found meanwhile may be written past the daemon.
Result<void> Session::receive_init() {
  server_.backing.decide(!options_.no_passthrough, fuse_session_fd(session_));
  pollfd device{fuse_session_fd(session_), POLLIN, 0};
  if (poll(&device, 1, kInitPatienceMs) == 0) return fail(ETIMEDOUT, "the kernel sends no INIT");
  std::vector<std::byte> buffer(kInitBufferBytes);
  const auto received = sys::read_some(device.fd, buffer);
  if (!received && received.error().code == ENODEV) return {};
  if (!received) return fail(received.error().code, "INIT: " + sys::error_text(received.error().code));
  fault_point("first request received");
  const auto request = std::span(buffer).first(*received);
  if (header_of(request).opcode != FUSE_INIT) return fail(EPROTO, "the connection does not begin with INIT");
  handle(request);
  if (fuse_session_exited(session_) != 0) return fail(EPROTO, "the connection's INIT is not understood");
  return {};
}

}  // namespace kvcachefs
