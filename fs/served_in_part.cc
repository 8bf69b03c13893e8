#include "fs/served_in_part.h"

#include <fcntl.h>
#include <linux/fuse.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>

#include "base/fault_point.h"
#include "fs/nodeid.h"
#include "fs/operations.h"
#include "fs/request.h"

namespace kvcachefs {
namespace {

constexpr uint32_t kStatx = 52;  // FUSE_STATX of Linux 6.6; Debian 12's linux/fuse.h is older

constexpr auto kLook = std::chrono::milliseconds(100);

bool is_open_of_a_reader(std::span<const std::byte> request) {
  return (arguments_of<fuse_open_in>(request).flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY;
}

bool is_closed_by_a_reader(uint64_t handle) {
  return (handle & (operations::kFromDisk | operations::kForWriting)) == 0;
}

}  // namespace

void ServedInPart::begin(std::span<const int32_t> told_stale, bool any_was_told) {
  MutexLock lock(mutex_);
  any_was_told_ = any_was_told;
  for (const int32_t thread : told_stale) looks_again_[static_cast<uint32_t>(thread)] = kToldBefore;
  in_part_.store(true, std::memory_order_release);
}

ServedInPart::Way ServedInPart::way_in_part(std::span<const std::byte> request) {
  if (is_served(request)) return Way::kServed;
  if (may_look_again(request)) return Way::kLookedUpAgain;
  return put_aside(request) ? Way::kAside : Way::kServed;
}

// A file that is not written is looked up, asked for its attributes, opened for reading, read and, if it is
// in memory, closed.
bool ServedInPart::is_served(std::span<const std::byte> request) const {
  const auto header = header_of(request);
  switch (header.opcode) {
    case FUSE_FORGET:
    case FUSE_BATCH_FORGET:
    case FUSE_DESTROY:
    case FUSE_IOCTL:  // no handler: ENOSYS, as stdio of some languages asks of each file
    case kStatx:
      return true;
  }
  const NodeId id{header.nodeid};
  if (id.is_root()) return header.opcode == FUSE_LOOKUP || header.opcode == FUSE_GETATTR;
  const auto pool = id.is_inode() ? pools_.find(id.pool_number()) : nullptr;
  if (pool == nullptr || !pool->recovery().has_found(id.ino())) return false;
  Recovery& its = pool->recovery();
  switch (header.opcode) {
    case FUSE_LOOKUP:
      return its.find(id.ino(), std::string(name_in(request, 0)).c_str());
    case FUSE_GETATTR:
    case FUSE_READLINK:
      return true;
    case FUSE_OPEN:
      return is_open_of_a_reader(request) && its.has_found_to_read(id.ino());
    case FUSE_READ:
      return (arguments_of<fuse_read_in>(request).fh & operations::kFromDisk) == 0 ||
             its.is_read_from_disk(id.ino());
    case FUSE_RELEASE:
      return is_closed_by_a_reader(arguments_of<fuse_release_in>(request).fh) &&
             its.has_found_to_read(id.ino());
    default:
      return false;
  }
}

// A nodeid that was not found yet says nothing of its inode's generation, without which it cannot be opened.
// Of a call by a path the kernel tries ESTALE once more, and looks up each name of it; a call by a descriptor
// fails, so what is open waits. Only an O_PATH descriptor's fstat cannot be told apart: all directories were
// found, and of files it is rare. What a process that died was given waits too, because it may have written
// down an open that is to be counted first; and what threads ask that share a number.
bool ServedInPart::may_look_again(std::span<const std::byte> request) {
  const auto header = header_of(request);
  const bool asks =
      header.opcode == FUSE_GETATTR || (header.opcode == FUSE_OPEN && is_open_of_a_reader(request));
  const NodeId id{header.nodeid};
  if (!asks || !id.is_inode() || header.pid == 0 || (header.unique & kResentBit) != 0) return false;
  const auto pool = pools_.find(id.pool_number());
  if (pool == nullptr || pool->recovery().has_found(id.ino())) return false;
  if (header.opcode == FUSE_GETATTR && pool->recovery().is_open(id.ino())) return false;
  MutexLock lock(mutex_);
  if (!in_part_) return false;  // all is found by now, and so is this
  const auto [told, is_first] = looks_again_.try_emplace(header.pid, header.nodeid);
  if (is_first) return !any_was_told_;
  const uint64_t before = std::exchange(told->second, header.nodeid);
  return before != kToldBefore && before != header.nodeid;
}

bool ServedInPart::put_aside(std::span<const std::byte> request) {
  MutexLock lock(mutex_);
  while (in_part_ && aside_bytes_ + request.size() > kMostBytes) found_.wait_for(mutex_, kLook);
  if (!in_part_) return false;
  aside_.emplace_back(request.begin(), request.end());
  aside_bytes_ += request.size();
  fault_point("put aside", aside_.size());
  return true;
}

void ServedInPart::end() {
  MutexLock lock(mutex_);
  in_part_.store(false, std::memory_order_release);
  looks_again_.clear();
  found_.notify_all();
}

std::optional<std::vector<std::byte>> ServedInPart::next() {
  MutexLock lock(mutex_);
  if (aside_.empty()) return std::nullopt;
  auto request = std::move(aside_.front());
  aside_.pop_front();
  return request;
}

}  // namespace kvcachefs
