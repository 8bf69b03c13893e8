// The Invalidator tells the kernel of names that the daemon itself made vanish or appear, and of inodes whose
// blocks it changed. Any thread may call the listener's functions, which only queue a notice, and
// wait_until_told(), which waits. step() is for several worker threads and holds no lock while it writes to
// the kernel: a notification waits for the parent directory's lock, and a request that a handler works on may
// hold that lock. Because a user can make such a request wait, one thread at a time handles a queue, in
// order, and the other threads handle the other queues. Each pool has two queues: one for inodes that the
// kernel is to let go of, and one for all other notices. The first waits for no directory: a mkdir that waits
// for such an inode may hold the directory that a notice in the second waits for. A name that the kernel does
// not know is no failure. A thread that queues must not wait for the kernel (a create that waits for room
// holds its directory's lock), so the evictor of a pool bounds the second queue: it stops while is_behind();
// a notice takes about 100 bytes, and a name of more than 15.
#pragma once

#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "tier/pool/pool.h"

struct fuse_session;

namespace kvcachefs {

class Invalidator : public DiscardListener {
 public:
  void discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) override
      EXCLUDES(mutex_);
  void appeared(uint16_t pool, uint64_t parent_ino, std::string name) override EXCLUDES(mutex_);
  void changed(uint16_t pool, uint64_t ino) override EXCLUDES(mutex_);
  void let_go(uint16_t pool, std::vector<uint64_t> inos, Told told) override EXCLUDES(mutex_);
  void drop_name(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name, Told told) override
      EXCLUDES(mutex_);
  bool can_let_go() const override { return can_let_go_; }
  static constexpr size_t kMostNotices = 1 << 18;  // 26 MB, with the longest names 90 MB
  bool is_behind(uint16_t pool) override EXCLUDES(mutex_);
  void wait_until_told(std::chrono::milliseconds at_most) override EXCLUDES(mutex_);
  // The call handles the notices of one queue, and waits for one for `at_most`.
  void step(fuse_session* session, std::chrono::milliseconds at_most) EXCLUDES(mutex_);
  void wake() EXCLUDES(mutex_);

 private:
  struct Notice {
    uint64_t parent;  // 0: the inode's attributes have changed
    uint64_t child;   // 0: the name exists now; the kernel may remember it as missing
    std::string name;
    std::vector<uint64_t> let_go = {};
    Told told = {};       // set: the name is dropped, or the inodes in let_go are, and this hears the outcome
    uint64_t number = 0;  // in the order of all pools' notices
  };
  struct Lane {
    uint16_t pool;
    bool lets_go;
    auto operator<=>(const Lane&) const = default;
  };
  struct Notices {
    uint64_t first = 0;  // the number of the first that is not told yet
    std::deque<Notice> queue = {};
    size_t in_hand = 0;  // notices that a thread is telling
  };
  void tell(fuse_session* session, const Notice& notice);
  void queue(uint16_t pool, Notice notice) EXCLUDES(mutex_);
  bool all_told_before(uint64_t number) const REQUIRES(mutex_);
  std::atomic<bool> can_let_go_{true};  // false once the kernel has refused
  Mutex mutex_;
  Condition condition_;
  std::map<Lane, Notices> lanes_ GUARDED_BY(mutex_);  // queues with notices that the kernel has not got yet
  std::deque<Lane> ready_ GUARDED_BY(mutex_);         // those of them that no thread handles
  Condition told_condition_;
  uint64_t queued_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
