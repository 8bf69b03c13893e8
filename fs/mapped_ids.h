// Mounts with mapped ids (MOUNT_ATTR_IDMAP, Linux 6.12), which libfuse 3.18 does not know. The flag for them
// is set in libfuse's answer to INIT when that is sent: libfuse is linked with a writev(2) of this file
// (CMakeLists.txt). The kernel then does all the mapping. With the flag it tells the daemon the caller's user
// only in requests that create something; in all other requests, of any mount, the user is -1. A kernel
// without mapped ids ignores the flag.
//
// Failure: none; where libfuse is a shared library its answer is sent unchanged, and such mounts are EINVAL.
#pragma once

namespace kvcachefs {

// The calling thread's next message to the kernel is the answer to INIT.
void allow_mapped_ids();

}  // namespace kvcachefs
