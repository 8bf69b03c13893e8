#include "fs/invalidator.h"

#include <linux/fuse.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/clock.h"
#include "fs/fuse.h"
#include "fs/nodeid.h"

namespace kvcachefs {
namespace {

// The notification is from Linux 6.18 (include/uapi/linux/fuse.h); Debian 12's linux/fuse.h is older.
constexpr int32_t kNotifyPrune = 9;
struct PruneOut {
  uint32_t count;
  uint32_t padding;
  uint64_t spare;
};

// The result is false if this kernel has no such notification.
bool prune(int device, const std::vector<uint64_t>& nodes) {
  const PruneOut prune{.count = static_cast<uint32_t>(nodes.size()), .padding = 0, .spare = 0};
  const size_t nodes_bytes = nodes.size() * sizeof nodes[0];
  const fuse_out_header header{.len = static_cast<uint32_t>(sizeof header + sizeof prune + nodes_bytes),
                               .error = kNotifyPrune,
                               .unique = 0};
  std::vector<char> message(header.len);
  std::memcpy(message.data(), &header, sizeof header);
  std::memcpy(message.data() + sizeof header, &prune, sizeof prune);
  std::memcpy(message.data() + sizeof header + sizeof prune, nodes.data(), nodes_bytes);
  return ::write(device, message.data(), message.size()) == static_cast<ssize_t>(message.size());
}

// A negative offset invalidates the attributes alone, because the kernel's cached pages are still right.
bool knows(fuse_session* session, uint64_t node) {
  return fuse_lowlevel_notify_inval_inode(session, node, -1, 0) != -ENOENT;
}

}  // namespace

void Invalidator::discarded(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name) {
  queue(pool, {NodeId::of_inode(pool, parent_ino).value, NodeId::of_inode(pool, ino).value, std::move(name)});
}

void Invalidator::appeared(uint16_t pool, uint64_t parent_ino, std::string name) {
  queue(pool, {NodeId::of_inode(pool, parent_ino).value, 0, std::move(name)});
}

void Invalidator::changed(uint16_t pool, uint64_t ino) {
  queue(pool, {0, NodeId::of_inode(pool, ino).value, {}});
}

void Invalidator::let_go(uint16_t pool, std::vector<uint64_t> inos, Told told) {
  for (uint64_t& ino : inos) ino = NodeId::of_inode(pool, ino).value;
  queue(pool, {.parent = 0, .child = 0, .name = {}, .let_go = std::move(inos), .told = std::move(told)});
}

void Invalidator::drop_name(uint16_t pool, uint64_t parent_ino, uint64_t ino, std::string name, Told told) {
  queue(pool, {.parent = NodeId::of_inode(pool, parent_ino).value,
               .child = NodeId::of_inode(pool, ino).value,
               .name = std::move(name),
               .let_go = {},
               .told = std::move(told)});
}

bool Invalidator::is_behind(uint16_t pool) {
  MutexLock lock(mutex_);
  const auto notices = lanes_.find({.pool = pool, .lets_go = false});
  return notices != lanes_.end() && notices->second.queue.size() + notices->second.in_hand >= kMostNotices;
}

void Invalidator::queue(uint16_t pool, Notice notice) {
  const Lane lane{.pool = pool, .lets_go = !notice.let_go.empty()};
  bool first = false;
  {
    MutexLock lock(mutex_);
    notice.number = queued_++;
    Notices& notices = lanes_.try_emplace(lane, Notices{.first = notice.number}).first->second;
    first = notices.first == notice.number;
    if (first) ready_.push_back(lane);
    notices.queue.push_back(std::move(notice));
  }
  if (first) condition_.notify_one();
}

// The error ENOENT means that the kernel has forgotten the name by itself; no other error can be mended here.
void Invalidator::tell(fuse_session* session, const Notice& notice) {
  const std::string& name = notice.name;
  if (!notice.let_go.empty()) {
    if (!prune(fuse_session_fd(session), notice.let_go)) can_let_go_ = false;
    for (const uint64_t node : notice.let_go) notice.told(NodeId{node}.ino(), knows(session, node));
  } else if (notice.parent == 0) {
    (void)knows(session, notice.child);
  } else if (notice.child == 0 || notice.told) {
    (void)fuse_lowlevel_notify_inval_entry(session, notice.parent, name.c_str(), name.size());
    if (notice.told) notice.told(NodeId{notice.child}.ino(), knows(session, notice.child));
  } else {
    (void)fuse_lowlevel_notify_delete(session, notice.parent, notice.child, name.c_str(), name.size());
  }
}

void Invalidator::step(fuse_session* session, std::chrono::milliseconds at_most) {
  std::deque<Notice> batch;
  Lane lane{};
  {
    MutexLock lock(mutex_);
    if (ready_.empty()) condition_.wait_for(mutex_, at_most);
    if (ready_.empty()) return;
    lane = ready_.front();
    ready_.pop_front();
    Notices& notices = lanes_[lane];
    batch.swap(notices.queue);
    notices.in_hand = batch.size();
  }
  for (const Notice& notice : batch) tell(session, notice);
  {
    MutexLock lock(mutex_);
    const auto told = lanes_.find(lane);
    if (told->second.queue.empty()) {
      lanes_.erase(told);
    } else {
      told->second.first = told->second.queue.front().number;
      told->second.in_hand = 0;
      ready_.push_back(lane);
    }
  }
  condition_.notify_one();  // this thread may go on with another queue
  told_condition_.notify_all();
}

bool Invalidator::all_told_before(uint64_t number) const {
  return std::ranges::all_of(lanes_, [number](const auto& lane) { return lane.second.first >= number; });
}

void Invalidator::wait_until_told(std::chrono::milliseconds at_most) {
  const uint64_t deadline_ms = now_coarse_ms() + static_cast<uint64_t>(at_most.count());
  MutexLock lock(mutex_);
  const uint64_t goal = queued_;
  while (!all_told_before(goal) && now_coarse_ms() < deadline_ms) told_condition_.wait_for(mutex_, at_most);
}

void Invalidator::wake() {
  condition_.notify_all();
}

}  // namespace kvcachefs
