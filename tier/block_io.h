// The seam to the disk: reads and writes of aligned blocks, many in flight, and a flush.
// tier/disk/uring_block_io.h is the production implementation; the tests put an in-memory disk behind the
// same calls.
//
// Threads: a BlockDevice may be called from any thread. A BlockChannel belongs to one thread at a time,
// except for wake(), which any thread may call; each thread that moves bytes opens its own channel. A channel
// must be destroyed before its device. Failures: a failed request reports an errno in its completion and in
// no other way. The implementation handles short transfers, EAGAIN and EINTR; a read past the end of the
// device is EIO. A failed write may have changed any of the blocks it covered. The implementation does not
// retry a request that the disk refused.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/result.h"

namespace kvcachefs {

// The offset, the size and the memory's address are multiples of the device's alignment_bytes(), and the size
// is not 0. The caller owns the memory, which must stay in place until the completion with the request's tag
// has been reaped.
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
  // The destructor waits for the requests that the disk has in hand and drops those still queued. No
  // completion follows.
  virtual ~BlockChannel() = default;

  // submit() never waits for the disk. Requests beyond the channel's depth queue inside the channel and go to
  // the disk as room comes, in order of submission; the disk may carry requests out in any order.
  virtual void submit(std::span<const BlockRequest> requests) = 0;
  // reap() appends the completions to `out` and returns how many it appended. It returns at once if there is
  // a completion, else at wake() or after at_most (0: it does not wait). Because reap() also hands queued
  // requests to the disk, a caller with requests in flight keeps calling it.
  virtual size_t reap(std::vector<BlockCompletion>& out, std::chrono::milliseconds at_most) = 0;
  // The count of requests submitted and not yet reaped, including the queued ones.
  virtual size_t in_flight() const = 0;
  // wake() ends the reap() that waits now, or else the next one, early. Several calls before one reap() count
  // as one.
  virtual void wake() = 0;
};

class BlockDevice {
 public:
  BlockDevice() = default;
  BlockDevice(const BlockDevice&) = delete;
  BlockDevice& operator=(const BlockDevice&) = delete;
  virtual ~BlockDevice() = default;

  // `depth`, at least 1, is how many requests of this channel the disk gets at a time.
  virtual Result<std::unique_ptr<BlockChannel>> channel(unsigned depth) = 0;
  // Writes of any channel whose completions came before the call are durable when flush() returns. It blocks.
  // After an error nothing is known of any write since the last successful flush, even if a later flush
  // succeeds.
  virtual Result<void> flush() = 0;
  virtual uint64_t size_bytes() const = 0;
  virtual uint32_t alignment_bytes() const = 0;  // a power of two, at least 512
  virtual int node() const = 0;                  // the NUMA node that the disk is attached to; -1: not known
};

}  // namespace kvcachefs
