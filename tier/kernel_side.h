// What a pool needs of the layer that speaks to the kernel, which gives it both. Any thread; failure and
// locks are said at each.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "base/result.h"
#include "tier/survivors.h"

namespace kvcachefs {

// What an open file rests on: a passthrough backing id, or in daemon I/O a descriptor. Any thread.
class BackingStore {
 public:
  virtual ~BackingStore() = default;
  // Of a descriptor of that inode, which the caller closes afterwards.
  virtual Result<int32_t> acquire(int fd, PoolInode inode) = 0;
  virtual void give_back(int32_t backing) = 0;
  virtual bool needs_write_access() const = 0;  // of the descriptor given to acquire
};

// Is told what the daemon made vanish or appear, so that the kernel hears of it.
class DiscardListener {
 public:
  virtual ~DiscardListener() = default;
  // Called with a shard held: must only queue. The second: the blocks it takes are others now.
  virtual void changed(uint16_t pool, uint64_t ino) = 0;
  virtual void discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) = 0;
  virtual void appeared(uint16_t pool, uint64_t parent_ino, std::string name) = 0;
  // Returns when the kernel has heard of all that was queued, or after that time. Not to be called from a
  // request that the kernel holds a directory for: it could not hear.
  virtual void wait_until_told(std::chrono::milliseconds at_most) = 0;
};

}  // namespace kvcachefs
