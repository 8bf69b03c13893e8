// A Request is what a handler answers: libfuse's handle of it, and who it is to the kernel. A plain value,
// which goes with the request through every continuation, on whatever thread that runs. Answering it is up to
// fs/server.h.
#pragma once

#include <linux/fuse.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "fs/fuse.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

// In the number of a request that another process has been given before. Debian 12's linux/fuse.h is older;
// the bit is from include/uapi/linux/fuse.h of Linux 6.9.
inline constexpr uint64_t kResentBit = uint64_t{1} << 63;

struct Request {
  fuse_req_t handle = nullptr;
  uint64_t unique = 0;  // the kernel's number for it; 0: it came over io_uring
  uint32_t opcode = 0;
  bool resent = false;     // a process that died had been given it too
  bool attempted = false;  // and may have carried it out (Requests::attempt())

  operator fuse_req_t() const { return handle; }  // libfuse's functions take that
};

// What a request begins with, as the device gives it; zeros for one that is too short, which libfuse refuses.
inline fuse_in_header header_of(std::span<const std::byte> received) {
  fuse_in_header header{};
  if (received.size() >= sizeof header) std::memcpy(&header, received.data(), sizeof header);
  return header;
}

// What follows the header; zeros for one that is too short.
template <class Arguments>
Arguments arguments_of(std::span<const std::byte> received) {
  Arguments arguments{};
  if (received.size() >= sizeof(fuse_in_header) + sizeof arguments)
    std::memcpy(&arguments, received.data() + sizeof(fuse_in_header), sizeof arguments);
  return arguments;
}
// The first of the strings that follow the arguments, or the second; empty if there is none.
inline std::string_view name_in(std::span<const std::byte> received, size_t argument_bytes,
                                bool second = false) {
  const auto text = received.subspan(std::min(received.size(), sizeof(fuse_in_header) + argument_bytes));
  std::string_view rest(reinterpret_cast<const char*>(text.data()), text.size());
  if (second) rest.remove_prefix(rest.contains('\0') ? rest.find('\0') + 1 : rest.size());
  return rest.substr(0, rest.find('\0'));
}

// The server thread has received this, as the device gave it, and hands it to libfuse next, which calls a
// handler. The result has no handle yet.
Request begin_request(Survivors& survivors, const fuse_buf& received);
// What this thread has received last, for the handler that libfuse has called with `handle`. Handlers get it
// as an argument (fs/operations.h).
Request received_request(fuse_req_t handle);

}  // namespace kvcachefs
