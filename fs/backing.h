// A SessionBacking gives an open file what its reads and writes go to. In passthrough that is a backing id of
// the kernel, so reads, writes and mappings do not come to the daemon. In daemon I/O it is a descriptor of
// the daemon. One of the two holds for the whole mount and is decided once, at INIT: mixing them on one inode
// is an EIO for the client (docs/facts.md "One I/O mode an inode"). Any thread. Failure: errno of the ioctl
// or dup.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>

#include "base/mutex.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

class SessionBacking : public BackingStore {
 public:
  // The call comes before the first request other than INIT is answered.
  void decide(bool passthrough, int device_fd) {
    device_fd_ = device_fd;
    passthrough_ = passthrough;
  }
  bool passthrough() const { return passthrough_; }

  explicit SessionBacking(Survivors& survivors) : survivors_(survivors) {}
  // The call closes backing ids of a process that died: those that it was giving back, those that it had not
  // written down, and those of files that no client has open any more. It comes after decide() and before the
  // first request.
  void take_over();

  // The error is EDQUOT in daemon I/O if the file's owner or the pool has its share of descriptors already.
  Result<int32_t> acquire(int fd, PoolInode inode) override EXCLUDES(mutex_);
  void giving_back(int32_t backing) override;
  void give_back(int32_t backing) override EXCLUDES(mutex_);
  bool needs_write_access() const override { return !passthrough_; }

 private:
  void close_backing(int32_t id);

  Survivors& survivors_;
  std::atomic<bool> passthrough_{false};
  std::atomic<int> device_fd_{-1};
  Mutex mutex_;
  std::unordered_map<int32_t, DescriptorBudget::Charge> charges_ GUARDED_BY(mutex_);  // by descriptor
};

// Closes the backing ids of a connection that was aborted. It lasts as long as a client has a file of it
// open, and its ids as long: each file that was opened for writing would count as being written.
void close_backings(int device_fd, Survivors& survivors);

}  // namespace kvcachefs
