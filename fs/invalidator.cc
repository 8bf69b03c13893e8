#include "fs/invalidator.h"

#include <utility>

#include "base/clock.h"
#include "fs/fuse.h"
#include "fs/nodeid.h"

namespace kvcachefs {

void Invalidator::discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) {
  queue({NodeId::of_inode(pool, parent_ino).value, NodeId::of_inode(pool, ino).value, std::move(name)});
}

void Invalidator::appeared(uint16_t pool, uint64_t parent_ino, std::string name) {
  queue({NodeId::of_inode(pool, parent_ino).value, 0, std::move(name)});
}

void Invalidator::changed(uint16_t pool, uint64_t ino) {
  queue({0, NodeId::of_inode(pool, ino).value, {}});
}

void Invalidator::queue(Notice notice) {
  {
    MutexLock lock(mutex_);
    queue_.push_back(std::move(notice));
    ++queued_;
  }
  condition_.notify_one();
}

void Invalidator::step(fuse_session* session, std::chrono::milliseconds at_most) {
  std::deque<Notice> batch;
  {
    MutexLock lock(mutex_);
    if (queue_.empty()) condition_.wait_for(mutex_, at_most);
    batch.swap(queue_);
  }
  // ENOENT means that the kernel has forgotten the name by itself; nothing else can be mended from here.
  for (const Notice& notice : batch) {
    // A negative offset: the attributes alone, the kernel's pages are as true as before.
    const std::string& name = notice.name;
    if (notice.parent == 0)
      (void)fuse_lowlevel_notify_inval_inode(session, notice.child, -1, 0);
    else if (notice.child == 0)
      (void)fuse_lowlevel_notify_inval_entry(session, notice.parent, name.c_str(), name.size());
    else
      (void)fuse_lowlevel_notify_delete(session, notice.parent, notice.child, name.c_str(), name.size());
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
