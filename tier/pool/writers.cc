#include "tier/pool/writers.h"

#include <algorithm>

#include "base/clock.h"

namespace kvcachefs {

constexpr uint64_t kIdleMs = 1000;

void Writers::promise(Writer& writer, uint64_t bytes) {
  promised_bytes_ += bytes - writer.promised_bytes;
  by_owner_[writer.owner] += bytes - writer.promised_bytes;
  writer.promised_bytes = bytes;
}

Writers::Writer& Writers::writer_of(uint64_t ino, uint64_t allocated_bytes) {
  Writer& writer =
      writers_.try_emplace(ino, Writer{.size_bytes = allocated_bytes, .allocated_bytes = allocated_bytes})
          .first->second;
  writer.grew_ms = now_coarse_ms();
  set_active(ino, writer, true);
  return writer;
}

void Writers::set_active(uint64_t ino, Writer& writer, bool active) {
  if (writer.active == active) return;
  writer.active = active;
  if (active) {
    idle_.erase(ino);
    active_.insert(ino);
  } else {
    active_.erase(ino);
    idle_.insert(ino);
  }
}

bool Writers::open(uint64_t ino, uint64_t allocated_bytes, uint64_t bytes, uint64_t free_bytes) {
  MutexLock lock(mutex_);
  Writer& writer = writer_of(ino, allocated_bytes);
  const uint64_t others_bytes = promised_bytes_ - writer.promised_bytes;
  if (free_bytes < others_bytes + bytes) return false;
  promise(writer, std::max(bytes, writer.promised_bytes));
  writer.promised_end = std::max(writer.promised_end, allocated_bytes + bytes);
  writer.passes = true;
  return true;
}

void Writers::open(uint64_t ino, uint64_t allocated_bytes, bool passes) {
  MutexLock lock(mutex_);
  writer_of(ino, allocated_bytes).passes |= passes;
}

bool Writers::close(uint64_t ino, uint64_t allocated_bytes) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(ino);
  if (found == writers_.end()) return false;
  promise(found->second, 0);
  reserved_bytes_ -= found->second.reserved_bytes;
  const bool outgrew = found->second.passes && allocated_bytes > found->second.promised_end;
  writers_.erase(found);
  active_.erase(ino);
  idle_.erase(ino);
  return outgrew;
}

void Writers::owned(uint64_t ino, uint8_t owner) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(ino);
  if (found == writers_.end()) return;
  const uint64_t bytes = found->second.promised_bytes;
  promise(found->second, 0);
  found->second.owner = owner;
  promise(found->second, bytes);
}

Shares::Promises Writers::promised_by_owner() {
  MutexLock lock(mutex_);
  return by_owner_;
}

void Writers::flushed(uint64_t ino) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(ino);
  if (found == writers_.end()) return;
  promise(found->second, 0);
  found->second.grew_ms = now_coarse_ms() - kIdleMs;  // inactive until it grows again
}

Writers::Seen Writers::seen(uint64_t ino, uint64_t size_bytes, uint64_t allocated_bytes,
                            uint64_t reserved_bytes) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(ino);
  if (found == writers_.end()) return {};
  Writer& writer = found->second;
  const uint64_t now_ms = now_coarse_ms();
  if (size_bytes > writer.size_bytes || allocated_bytes > writer.allocated_bytes) writer.grew_ms = now_ms;
  const bool active = now_ms - writer.grew_ms < kIdleMs;
  set_active(ino, writer, active);
  const uint64_t taken = allocated_bytes - std::min(allocated_bytes, writer.allocated_bytes);
  promise(writer, active ? writer.promised_bytes - std::min(writer.promised_bytes, taken) : 0);
  reserved_bytes_ += reserved_bytes - writer.reserved_bytes;
  writer.reserved_bytes = reserved_bytes;
  writer.size_bytes = size_bytes;
  writer.allocated_bytes = allocated_bytes;
  return {.promised_bytes = writer.promised_bytes, .active = active, .passes = writer.passes};
}

void Writers::raise(uint64_t ino, uint64_t bytes) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(ino);
  if (found != writers_.end()) promise(found->second, std::max(bytes, found->second.promised_bytes));
}

uint64_t Writers::promised_to(uint64_t ino) {
  MutexLock lock(mutex_);
  const auto found = writers_.find(ino);
  return found != writers_.end() ? found->second.promised_bytes : 0;
}

size_t Writers::count() {
  MutexLock lock(mutex_);
  return writers_.size();
}

std::vector<uint64_t> Writers::next_to_see(size_t idle) {
  MutexLock lock(mutex_);
  std::vector<uint64_t> inodes(active_.begin(), active_.end());
  for (size_t left = std::min(idle, idle_.size()); left > 0; --left) {
    auto next = idle_.upper_bound(last_seen_idle_);
    if (next == idle_.end()) next = idle_.begin();
    last_seen_idle_ = *next;
    inodes.push_back(*next);
  }
  return inodes;
}

}  // namespace kvcachefs
