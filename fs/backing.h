// What open files rest on. Passthrough: a backing id of the kernel's, so that reads, writes and maps never
// come here. Daemon I/O: a descriptor of ours. Which of the two holds for the whole mount is decided once, at
// INIT; mixing them on one inode is an EIO to the client (fuse-facts: fs/fuse/iomode.c). Any thread. Failure:
// errno of the ioctl or dup.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"
#include "tier/pool.h"

namespace kvcachefs {

class SessionBacking : public BackingStore {
 public:
  // Before the first request other than INIT is answered.
  void decide(bool passthrough, int device_fd) {
    device_fd_ = device_fd;
    passthrough_ = passthrough;
  }
  bool passthrough() const { return passthrough_; }

  explicit SessionBacking(Survivors& survivors) : survivors_(survivors) {}
  // Closes what a process that died was giving back, had not written down, or had for files that nobody has
  // open any more. Before the first request, and after decide().
  void take_over();

  // EDQUOT in daemon I/O where the file's owner or the pool has as many already.
  Result<int32_t> acquire(int fd, PoolInode inode) override EXCLUDES(mutex_);
  void give_back(int32_t backing) override EXCLUDES(mutex_);
  bool needs_write_access() const override { return !passthrough_; }

 private:
  void close_backing(int32_t id);

  Survivors& survivors_;
  std::atomic<bool> passthrough_{false};
  std::atomic<int> device_fd_{-1};
  Mutex mutex_;
  std::unordered_map<int32_t, DescriptorBudget::Charge> charges_ GUARDED_BY(mutex_);  // of descriptors
};

}  // namespace kvcachefs
