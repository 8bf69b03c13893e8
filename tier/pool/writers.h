// Writers knows which files of a pool are open for writing, and what free memory is promised to each. A write
// with passthrough meets the end of the pool's tmpfs without the daemon being asked. So passthrough is only
// for a writer that was promised what it may write, or what it may write until the evictor makes more; other
// writers' writes come to the daemon and wait there for room. A promise is no memory yet. It shrinks by what
// the writer takes, and ends when the file has not grown for a second or a writer closes.
//
// Any thread; a leaf among the locks. Never fails.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "tier/entries/shares.h"

namespace kvcachefs {

class Writers {
 public:
  struct Seen {
    uint64_t promised_bytes = 0;
    bool active = false;  // the file has grown within the last second
    bool passes = false;  // the writer writes past the daemon
  };

  // A writer opens the inode; the file takes `allocated_bytes` of memory. True: `bytes` are promised to it,
  // because `free_bytes` hold them beside all other promises, and it writes past the daemon. False: they do
  // not.
  bool open(uint64_t ino, uint64_t allocated_bytes, uint64_t bytes, uint64_t free_bytes) EXCLUDES(mutex_);
  // The same for a writer that writes through the daemon, or that a process that died has left.
  void open(uint64_t ino, uint64_t allocated_bytes, bool passes) EXCLUDES(mutex_);
  // The last writer closes. True: it wrote past the daemon and took more than it was promised.
  bool close(uint64_t ino, uint64_t allocated_bytes) EXCLUDES(mutex_);
  // The inode is this owner's (tier/entries/shares.h).
  void owned(uint64_t ino, uint8_t owner) EXCLUDES(mutex_);
  Shares::Promises promised_by_owner() EXCLUDES(mutex_);
  // A writer has closed a descriptor: most likely it has written all.
  void flushed(uint64_t ino) EXCLUDES(mutex_);

  // What the inode's file is now: its size, its memory, and the memory reserved beyond its end.
  Seen seen(uint64_t ino, uint64_t size_bytes, uint64_t allocated_bytes, uint64_t reserved_bytes)
      EXCLUDES(mutex_);
  // Raises the inode's promise to `bytes`, whether they are free or not.
  void raise(uint64_t ino, uint64_t bytes) EXCLUDES(mutex_);
  uint64_t promised_to(uint64_t ino) EXCLUDES(mutex_);

  // Those whose files are to be looked at: all that are active, and `idle` of the others, which take turns.
  // So a look costs nothing for the many that only keep their files open.
  std::vector<uint64_t> next_to_see(size_t idle) EXCLUDES(mutex_);
  size_t count() EXCLUDES(mutex_);
  uint64_t promised_bytes() const { return promised_bytes_.load(std::memory_order_relaxed); }
  // Memory that is allocated to files beyond their ends.
  uint64_t reserved_bytes() const { return reserved_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Writer {
    uint64_t promised_bytes = 0;
    uint64_t promised_end = 0;  // the most memory that its file was to take by the promises at its opens
    uint64_t reserved_bytes = 0;
    uint64_t size_bytes = 0;
    uint64_t allocated_bytes = 0;
    uint64_t grew_ms = 0;
    uint8_t owner = 0;
    bool passes = false;
    bool active = false;
  };
  Writer& writer_of(uint64_t ino, uint64_t allocated_bytes) REQUIRES(mutex_);
  void promise(Writer& writer, uint64_t bytes) REQUIRES(mutex_);
  void set_active(uint64_t ino, Writer& writer, bool active) REQUIRES(mutex_);

  std::atomic<uint64_t> promised_bytes_{0};
  std::atomic<uint64_t> reserved_bytes_{0};
  Mutex mutex_;
  Shares::Promises by_owner_ GUARDED_BY(mutex_){};
  std::unordered_map<uint64_t, Writer> writers_ GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> active_ GUARDED_BY(mutex_);
  std::set<uint64_t> idle_ GUARDED_BY(mutex_);
  uint64_t last_seen_idle_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
