// Inodes of a pool, as the kernel knows them.
#include <algorithm>
#include <cerrno>

#include "base/clock.h"
#include "tier/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kStatBlockBytes = 512;  // st_blocks, stat(2)

// What the daemon has claimed beyond the end is its own affair until somebody writes there.
void hide_reservation(const Entry& entry, struct stat& attributes) {
  if (entry.reserved_end == 0) return;
  const uint64_t size = static_cast<uint64_t>(attributes.st_size);
  const uint64_t most = (size + kBlockBytes - 1) / kBlockBytes * (kBlockBytes / kStatBlockBytes);
  if (static_cast<uint64_t>(attributes.st_blocks) > most) attributes.st_blocks = static_cast<blkcnt_t>(most);
}

}  // namespace

Result<Directory> Pool::directory(uint64_t ino) {
  if (ino == root_ino()) return Directory{arena_.tree_fd(), {}};
  auto fd = open_inode(ino, O_PATH | O_DIRECTORY);
  if (!fd) return pass(fd);
  const int number = fd->get();
  return Directory{number, std::move(*fd)};
}

Result<UniqueFd> Pool::open_inode(uint64_t ino, int flags) {
  if (ino == root_ino()) return arena_.open(arena_.tree(), flags);
  EntryTable::Shard& shard = table_.shard(ino);
  sys::Handle handle;
  {
    MutexLock lock(shard.mutex);
    const Entry* entry = shard.find(ino);
    if (entry == nullptr) return fail(ESTALE);
    handle = handle_of(*entry);
  }
  // O_NONBLOCK: an inode just being discarded holds a lease, and waiting for it would wait for ourselves.
  auto fd = arena_.open(handle, flags | ((flags & O_PATH) != 0 ? 0 : O_NONBLOCK));
  if (!fd && fd.error().code == EWOULDBLOCK) return fail(ESTALE);
  return fd;
}

Result<struct stat> Pool::attributes(uint64_t ino) {
  // The kernel asks for it again after every create and rename in it, to check permissions.
  if (ino == root_ino()) return sys::stat_of(arena_.tree_fd());
  auto fd = open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes || !S_ISREG(attributes->st_mode)) return attributes;
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  if (const Entry* entry = shard.find(ino)) hide_reservation(*entry, *attributes);
  return attributes;
}

Result<void> Pool::looked_up(sys::Handle handle, struct stat& attributes) {
  EntryTable::Shard& shard = table_.shard(handle.ino);
  MutexLock lock(shard.mutex);
  if (S_ISREG(attributes.st_mode)) {
    // Every regular file that has a name has an entry: one without has been discarded this moment.
    Entry* entry = shard.find(handle.ino);
    if (entry == nullptr || entry->removed) return fail(ESTALE);
    ++entry->lookup_count;
    entry->looked_up_ms = static_cast<uint32_t>(now_coarse_ms());
    hide_reservation(*entry, attributes);
    return {};
  }
  Entry& entry = shard.find_or_make(handle.ino, handle.generation);
  if (entry.removed) return fail(ESTALE);
  ++entry.lookup_count;
  return {};
}

void Pool::forget(uint64_t ino, uint64_t lookups) {
  EntryTable::Shard& shard = table_.shard(ino);
  UniqueFd kept;  // closed with no lock held: it may be the file's last reference
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return;
  entry->lookup_count -= std::min(entry->lookup_count, lookups);
  if (entry->lookup_count > 0 || entry->open_count > 0) return;
  if (entry->is_file() && !entry->removed) return;
  if (auto found = shard.kept.find(ino); found != shard.kept.end()) kept = std::move(found->second);
  shard.erase(ino);
}

uint32_t Pool::generation_of(uint64_t ino) {
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  const Entry* entry = shard.find(ino);
  return entry == nullptr ? 0 : entry->generation;
}

}  // namespace kvcachefs
