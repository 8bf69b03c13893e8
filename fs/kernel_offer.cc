#include "fs/kernel_offer.h"

#include <linux/fuse.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>

#include "base/sys.h"
#include "base/sys_disk.h"
#include "fs/mounts.h"
#include "fs/newer_fuse.h"

namespace kvcachefs {
namespace {

// INIT is there when mount(2) returns; the wait is for a kernel that is not as this one thinks.
constexpr int kInitWaitMs = 5000;
constexpr uint32_t kLeastWriteBytes = 4096;

Result<void> send(int device, std::span<const std::byte> message) {
  if (::write(device, message.data(), message.size()) == static_cast<ssize_t>(message.size())) return {};
  return std::unexpected(sys::last_error("write to /dev/fuse"));
}

Result<fuse_init_in> read_init(int device, fuse_in_header& header) {
  sys::wait_readable(device, kInitWaitMs);
  std::array<std::byte, 128 << 10> request{};
  fuse_init_in init{};
  const auto length = sys::read_some(device, request);
  if (!length) return std::unexpected(length.error());
  if (*length < sizeof header) return fail(EPROTO);
  std::memcpy(&header, request.data(), sizeof header);
  if (header.opcode != FUSE_INIT) return fail(EPROTO);
  std::memcpy(&init, request.data() + sizeof header, std::min(*length - sizeof header, sizeof init));
  return init;
}

// Asks for passthrough and nothing else.
Result<void> answer_init(int device, const fuse_in_header& request, const fuse_init_in& init) {
  struct {
    fuse_out_header header;
    InitAnswer answer;
  } message{};
  message.header = {.len = sizeof message, .error = 0, .unique = request.unique};
  message.answer.major = init.major;
  message.answer.minor = init.minor;
  message.answer.flags = init.flags & kInitExtended;
  message.answer.flags2 = init.flags2 & kInitPassthrough;
  message.answer.max_stack_depth = 1;  // a tmpfs lies on no other file system
  message.answer.max_write = kLeastWriteBytes;
  message.answer.time_gran = 1;
  return send(device, std::as_bytes(std::span(&message, 1)));
}

Trial notify(int device, int32_t code) {
  const fuse_out_header header{.len = sizeof header, .error = code, .unique = 0};
  return Trial::of(send(device, std::as_bytes(std::span(&header, 1))));
}

Trial register_file(int device, int file) {
  FuseBackingMap map{.fd = file, .flags = 0, .padding = 0};
  auto id = sys::control(device, kBackingOpen, &map);
  if (!id) return Trial::of(id);
  auto wire_id = static_cast<uint32_t>(*id);
  (void)sys::control(device, kBackingClose, &wire_id);  // the connection ends soon, and the id with it
  return Trial::worked_well();
}

}  // namespace

KernelOffer ask_kernel(const std::string& directory, int backing_file) {
  KernelOffer offer;
  const auto device = open_fuse_device();
  offer.device = Trial::of(device);
  if (!device) return offer;
  offer.mount = Trial::of(mount_connection(device->get(), directory));
  if (!offer.mount.worked()) return offer;
  fuse_in_header header{};
  const auto init = read_init(device->get(), header);
  offer.init = init ? Trial::of(answer_init(device->get(), header, *init)) : Trial::of(init);
  if (!offer.init.worked()) return offer;
  const uint32_t offered = (init->flags & kInitExtended) != 0 ? init->flags2 : 0;
  offer.minor = init->minor;
  offer.resends = (offered & kInitResend) != 0;
  offer.maps_direct = (offered & kInitMapsDirect) != 0;
  offer.maps_ids = (offered & kInitMappedIds) != 0;
  offer.over_uring = (offered & kInitOverUring) != 0;
  offer.has_passthrough = (offered & kInitPassthrough) != 0;
  if (offer.has_passthrough) offer.backing = register_file(device->get(), backing_file);
  offer.resend = notify(device->get(), kNotifyResend);
  offer.epoch = notify(device->get(), kNotifyIncreaseEpoch);
  return offer;
}

std::optional<bool> fuse_over_uring_enabled() {
  const auto value = sys::read_text("/sys/module/fuse/parameters/enable_uring");
  if (!value) return std::nullopt;
  return value->starts_with("Y") || value->starts_with("1");
}

}  // namespace kvcachefs
