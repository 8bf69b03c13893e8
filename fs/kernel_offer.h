// The abilities of the kernel's FUSE, tried with a connection that is mounted for the trial and serves no
// client. The process should have mounts of its own (sys::take_own_mounts), with which the connection ends.
// One thread; blocks for some seconds at most. Failure: the trials say what failed, and what comes after it
// was not tried.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/trial.h"

namespace kvcachefs {

struct KernelOffer {
  Trial device;  // the open of /dev/fuse
  Trial mount;
  Trial init;  // a request came, and its answer was taken
  uint32_t minor = 0;
  bool resends = false;  // of the flags of INIT, as the next ones
  bool maps_direct = false;
  bool maps_ids = false;
  bool over_uring = false;  // the parameter of fuse_over_uring_enabled() is set, too
  bool has_passthrough = false;
  Trial backing;  // the registration of a file
  Trial resend;
  Trial epoch;
};

// Mounts on `directory`; `backing_file` is an open file of a tmpfs.
KernelOffer ask_kernel(const std::string& directory, int backing_file);

// The kernel's switch for FUSE over io_uring; none: this kernel does not have it, or not yet loaded.
std::optional<bool> fuse_over_uring_enabled();

}  // namespace kvcachefs
