#include "fs/invalidator.h"

#include <utility>

#include "fs/fuse.h"
#include "fs/nodeid.h"

namespace kvcachefs {

void Invalidator::discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(
        {NodeId::of_inode(pool, parent_ino).value, NodeId::of_inode(pool, ino).value, std::move(name)});
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
  for (const Vanished& name : batch)
    (void)fuse_lowlevel_notify_delete(session, name.parent, name.child, name.name.c_str(), name.name.size());
}

void Invalidator::wake() {
  condition_.notify_all();
}

}  // namespace kvcachefs
