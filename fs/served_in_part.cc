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

namespace kvcachefs {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);

// What follows the header of a request; zeros where it is too short, which libfuse refuses.
template <class Arguments>
Arguments arguments_of(std::span<const std::byte> request) {
  Arguments arguments{};
  if (request.size() >= sizeof(fuse_in_header) + sizeof arguments)
    std::memcpy(&arguments, request.data() + sizeof(fuse_in_header), sizeof arguments);
  return arguments;
}

// The name that a LOOKUP has after its header.
std::string name_in(std::span<const std::byte> request) {
  const auto text = request.subspan(std::min(request.size(), sizeof(fuse_in_header)));
  const auto* const begin = reinterpret_cast<const char*>(text.data());
  return {begin, std::find(begin, begin + text.size(), '\0')};
}

bool is_closed_by_a_reader(uint64_t handle) {
  return (handle & (operations::kFromDisk | operations::kForWriting)) == 0;
}

}  // namespace

// A file in memory that is not written is looked up, asked for its attributes, opened for reading, read and
// closed.
// A nodeid that was not found yet says nothing of its inode's generation, without which it cannot be opened;
// but an open by it that gets ESTALE, as the handlers answer it, is tried once more by the kernel with a look
// at each name of its path. Only where that has been tried the request is put aside.
bool ServedInPart::is_served(std::span<const std::byte> request) {
  fuse_in_header header{};
  if (request.size() < sizeof header) return true;
  std::memcpy(&header, request.data(), sizeof header);
  if (header.opcode == FUSE_FORGET || header.opcode == FUSE_BATCH_FORGET || header.opcode == FUSE_DESTROY)
    return true;
  const NodeId id{header.nodeid};
  if (id.is_root()) return header.opcode == FUSE_LOOKUP || header.opcode == FUSE_GETATTR;
  const auto pool = id.is_inode() ? pools_.find(id.pool_number()) : nullptr;
  if (pool == nullptr) return false;
  Recovery& its = pool->recovery();
  const auto may_look_again = [&] { return !stale_callers_.told(static_cast<pid_t>(header.pid)); };
  switch (header.opcode) {
    case FUSE_LOOKUP:
      return its.has_found(id.ino()) ? its.find(id.ino(), name_in(request).c_str()) : may_look_again();
    case FUSE_GETATTR:
    case FUSE_READLINK:
      return its.has_found(id.ino());
    case FUSE_OPEN:
      if ((arguments_of<fuse_open_in>(request).flags & (O_ACCMODE | O_TRUNC)) != O_RDONLY) return false;
      return its.has_found(id.ino()) ? its.find_to_read(id.ino()) : may_look_again();
    case FUSE_READ:
      return (arguments_of<fuse_read_in>(request).fh & operations::kFromDisk) == 0 && its.has_found(id.ino());
    case FUSE_RELEASE:
      return is_closed_by_a_reader(arguments_of<fuse_release_in>(request).fh) && its.find_to_read(id.ino());
    default:
      return false;
  }
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
