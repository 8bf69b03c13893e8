// Tells the kernel of names that the daemon itself made vanish or appear, and of inodes whose blocks it
// changed. discarded() is for any thread and only queues; step() is for one worker thread and holds no lock
// while it writes to the kernel, since a notification waits for the parent directory's lock, which a request
// in a handler's hands may hold. A name the kernel does not know is no failure. The queue is not bounded: who
// queues must not wait for the kernel (a create that waits for room holds the directory), and an item is
// about 100 bytes.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>

#include "base/mutex.h"
#include "tier/pool.h"

struct fuse_session;

namespace kvcachefs {

class Invalidator : public DiscardListener {
 public:
  void discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) override
      EXCLUDES(mutex_);
  void appeared(uint16_t pool, uint64_t parent_ino, std::string name) override EXCLUDES(mutex_);
  void changed(uint16_t pool, uint64_t ino) override EXCLUDES(mutex_);
  void wait_until_told(std::chrono::milliseconds at_most) override EXCLUDES(mutex_);
  // Handles what is queued, waiting at most so long for something.
  void step(fuse_session* session, std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() EXCLUDES(mutex_);

 private:
  struct Notice {
    uint64_t parent;  // 0: the inode's attributes are others now
    uint64_t child;   // 0: the name, which may be remembered as a miss, is there now
    std::string name;
  };
  void queue(Notice notice) EXCLUDES(mutex_);
  Mutex mutex_;
  Condition condition_;
  std::deque<Notice> queue_ GUARDED_BY(mutex_);
  Condition told_condition_;
  uint64_t queued_ GUARDED_BY(mutex_) = 0;
  uint64_t told_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
