// The seam to the disk: reads and writes of aligned blocks by number of request, many in flight, and a flush.
// tier/uring_block_io.h is the real one; the tests' in-memory disk stands behind the same calls.
//
// Threads: a BlockDevice may be called from any thread. A BlockChannel belongs to one thread at a time, but
// for wake(), which any thread may call; each thread that moves bytes opens a channel of its own. A channel
// must be gone before its device is. Failures: a request ends with an errno in its completion and with
// nothing else: short transfers, EAGAIN and EINTR are dealt with below the seam, a read past the end of the
// device is EIO. A write that failed may have changed any of the blocks it was for. Nothing is retried that
// the disk refused.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

// offset, size and address of the memory are multiples of the device's alignment_bytes(), and the size is not
// 0. The memory is the caller's, and must stay where it is until the completion with its tag has been reaped.
struct BlockRequest {
  enum class Kind : uint8_t { kRead, kWrite };
  Kind kind = Kind::kRead;
  uint64_t offset = 0;
  std::span<std::byte> memory;
  uint64_t tag = 0;  // the caller's; need not be unique
};

struct BlockCompletion {
  uint64_t tag = 0;
  int error = 0;  // 0: all bytes moved; else an errno
};

class BlockChannel {
 public:
  BlockChannel() = default;
  BlockChannel(const BlockChannel&) = delete;
  BlockChannel& operator=(const BlockChannel&) = delete;
  // Waits for what the disk has in hand; what is still queued is dropped. No completion comes any more.
  virtual ~BlockChannel() = default;

  // Never waits for the disk. What exceeds the channel's depth is queued inside and follows as room comes, in
  // order of submission; requests may be carried out in any order.
  virtual void submit(std::span<const BlockRequest> requests) = 0;
  // Appends what has completed and returns how many that were: at once if there is one, at wake(), or after
  // at_most (0: does not wait). Queued requests are handed to the disk in here too, so a caller with requests
  // in flight keeps calling.
  virtual size_t reap(std::vector<BlockCompletion>& out, std::chrono::milliseconds at_most) = 0;
  // Submitted and not yet reaped, the queued ones among them.
  virtual size_t in_flight() const = 0;
  // Ends the reap() that waits now, or else the next one, early. Several before one reap() are one.
  virtual void wake() = 0;
};

class BlockDevice {
 public:
  BlockDevice() = default;
  BlockDevice(const BlockDevice&) = delete;
  BlockDevice& operator=(const BlockDevice&) = delete;
  virtual ~BlockDevice() = default;

  // depth: how many requests the disk gets at a time from this channel, at least 1.
  virtual Result<std::unique_ptr<BlockChannel>> channel(unsigned depth) = 0;
  // All writes, of any channel, whose completions came before the call are durable on return. Blocks. After
  // an error nothing is known of any write since the last flush that succeeded, even if a later flush
  // succeeds.
  virtual Result<void> flush() = 0;
  virtual uint64_t size_bytes() const = 0;
  virtual uint32_t alignment_bytes() const = 0;  // a power of two, at least 512
  virtual int node() const = 0;                  // the NUMA node the disk hangs on; -1: not known
};

}  // namespace kvcachefs
