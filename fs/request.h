// A Request is what a handler answers: libfuse's handle of it, and who it is to the kernel. A plain value,
// which goes with the request through every continuation, on whatever thread that runs. Answering it is up to
// fs/server.h.
#pragma once

#include <cstdint>

#include "fs/fuse.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

struct Request {
  fuse_req_t handle = nullptr;
  uint64_t unique = 0;  // the kernel's number for it; 0: it came over io_uring
  uint32_t opcode = 0;
  bool resent = false;     // a process that died had been given it too
  bool attempted = false;  // and may have carried it out (Requests::attempt())

  operator fuse_req_t() const { return handle; }  // libfuse's functions take that
};

// The server thread has received this, as the device gave it, and hands it to libfuse next, which calls a
// handler. The result has no handle yet.
Request begin_request(Survivors& survivors, const fuse_buf& received);
// What this thread has received last, for the handler that libfuse has called with `handle`. Handlers get it
// as an argument (fs/operations.h).
Request received_request(fuse_req_t handle);

}  // namespace kvcachefs
