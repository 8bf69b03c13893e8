// The disk behind io_uring: a block device or a regular file, opened with O_DIRECT, so that bytes go between
// the disk and the caller's memory (the mapped pages of a pool's file) without a copy. Each channel has its
// own ring; a batch of requests is one system call. Threads: as tier/block_io.h says. Failures: ENOSYS or
// EPERM with a message that names io_uring where the kernel does not offer it. If the thread that submitted a
// request ends first, the request is tried again; nothing else is lost.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "tier/block_io.h"

namespace kvcachefs {

// Whether a channel could have a ring: made, and taken apart again.
Result<void> try_uring();

// The alignment_bytes() that a device over this open file would have.
Result<uint32_t> uring_alignment_bytes(int fd, const std::string& path);

// uring_device_on() takes over a file that is open for reading and writing with O_DIRECT, with the locks that
// it holds; `path` is for messages. Requests beyond `size_bytes` fail; the file's own size is a limit too.
Result<std::unique_ptr<BlockDevice>> uring_device_on(UniqueFd fd, const std::string& path,
                                                     uint64_t size_bytes = UINT64_MAX);

}  // namespace kvcachefs
