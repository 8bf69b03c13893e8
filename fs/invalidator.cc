#include "fs/invalidator.h"

#include <utility>

#include "base/clock.h"
#include "fs/fuse.h"
#include "fs/nodeid.h"

namespace kvcachefs {

void Invalidator::discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(
        {NodeId::of_inode(pool, parent_ino).value, NodeId::of_inode(pool, ino).value, std::move(name)});
    ++queued_;
  }
  condition_.notify_one();
}

void Invalidator::changed(uint16_t pool, uint64_t ino) {
  {
    MutexLock lock(mutex_);
    queue_.push_back({0, NodeId::of_inode(pool, ino).value, {}});
    ++queued_;
  }
  condition_.notify_one();
}

void Invalidator::step(fuse_session* session, std::chrono::milliseconds at_most) {
  std::deque<Vanished> batch;
  {
    MutexLock lock(mutex_);
    if (queue_.empty()) condition_.wait_for(mutex_, at_most);
    batch.swap(queue_);
  }
  // ENOENT means that the kernel has forgotten the name by itself; nothing else can be mended from here.
  for (const Vanished& name : batch) {
    // A negative offset: the attributes alone, the kernel's pages are as true as before.
    if (name.parent == 0)
      (void)fuse_lowlevel_notify_inval_inode(session, name.child, -1, 0);
    else
      (void)fuse_lowlevel_notify_delete(session, name.parent, name.child, name.name.c_str(),
                                        name.name.size());
  }
  if (batch.empty()) return;
  {
    MutexLock lock(mutex_);
    told_ += batch.size();
  }
  told_condition_.notify_all();
}

void Invalidator::wait_until_told(std::chrono::milliseconds at_most) {
  const uint64_t deadline_ms = now_coarse_ms() + static_cast<uint64_t>(at_most.count());
  MutexLock lock(mutex_);
  const uint64_t goal = queued_;
  while (told_ < goal && now_coarse_ms() < deadline_ms) told_condition_.wait_for(mutex_, at_most);
}

void Invalidator::wake() {
  condition_.notify_all();
}

}  // namespace kvcachefs
