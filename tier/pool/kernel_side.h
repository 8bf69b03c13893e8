// Two interfaces through which a pool uses the layer that speaks to the kernel; that layer implements both.
// Any thread; failure and locks are said at each function.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/result.h"
#include "tier/survivors/survivors.h"

namespace kvcachefs {

// A BackingStore makes what an open file rests on: a passthrough backing id, or a descriptor in daemon I/O.
// Any thread.
class BackingStore {
 public:
  virtual ~BackingStore() = default;
  // `fd` is a descriptor of that inode, which the caller closes afterwards.
  virtual Result<int32_t> acquire(int fd, PoolInode inode) = 0;
  // giving_back() notes for a successor that no open uses the backing any more: the caller holds the entry's
  // shard, because the next open acquires another. give_back() follows without a lock.
  virtual void giving_back(int32_t) {}
  virtual void give_back(int32_t backing) = 0;
  virtual bool needs_write_access() const = 0;  // whether acquire() needs a descriptor open for writing
};

// A DiscardListener is told what the daemon made vanish or appear, so that the kernel hears of it.
class DiscardListener {
 public:
  virtual ~DiscardListener() = default;
  // These three are called with a shard held and must only queue. changed(): the kernel's attributes of the
  // inode are out of date, for example the blocks that it takes.
  virtual void changed(uint16_t pool, uint64_t ino) = 0;
  virtual void discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) = 0;
  virtual void appeared(uint16_t pool, uint64_t parent_ino, std::string name) = 0;
  // let_go() asks the kernel to let go of inodes that only its caches hold. drop_name() tells it to drop a
  // directory's name: for kernels before Linux 6.18, which cannot be asked, and for directories in which the
  // kernel caches misses. A process that holds the directory may notice the drop: getcwd(2) fails until the
  // name is looked up again. Both only queue. `told` is called for each inode from another thread, with no
  // lock held, and says whether the kernel still knows it.
  using Told = std::function<void(uint64_t ino, bool known)>;
  virtual void let_go(uint16_t, std::vector<uint64_t>, Told) {}
  virtual void drop_name(uint16_t, uint64_t /*parent_ino*/, uint64_t, std::string, Told) {}
  virtual bool can_let_go() const { return true; }
  // So much is queued for the pool that nothing more is to be evicted from it: the kernel has not heard of it
  // for long, because a client's call holds a directory. With a shard held or not.
  virtual bool is_behind(uint16_t /*pool*/) { return false; }
  // Returns when the kernel has heard of all that was queued, or after `at_most`. A request for which the
  // kernel holds a directory must not call it: the kernel could not hear of that directory.
  virtual void wait_until_told(std::chrono::milliseconds at_most) = 0;
};

}  // namespace kvcachefs
