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

uint64_t in_ns(const timespec& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

timespec from_ns(uint64_t ns) {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

}  // namespace

void Pool::show(EntryTable::Shard& shard, const Entry& entry, struct stat& attributes) {
  hide_reservation(entry, attributes);
  if (auto kept = shard.times.find(entry.policy.ino); kept != shard.times.end()) {
    attributes.st_atim = kept->second.accessed;
    attributes.st_mtim = kept->second.modified;
    attributes.st_ctim = kept->second.changed;
  } else if (entry.own_ctime_ns != 0 && in_ns(attributes.st_ctim) == entry.own_ctime_ns) {
    attributes.st_ctim = from_ns(entry.shown_ctime_ns);
  }
}

void Pool::hide_ctime(Entry& entry, const timespec& before, int fd) {
  auto attributes = sys::stat_of(fd);
  if (!attributes) return;
  if (entry.own_ctime_ns == 0 || in_ns(before) != entry.own_ctime_ns) entry.shown_ctime_ns = in_ns(before);
  entry.own_ctime_ns = in_ns(attributes->st_ctim);
}

Result<void> Pool::set_times(uint64_t ino, const std::array<timespec, 2>& times) {
  if (ino == root_ino()) return sys::change_times(arena_.tree_fd(), times);
  EntryTable::Shard& shard = table_.shard(ino);
  MutexLock lock(shard.mutex);
  const Entry* entry = shard.find(ino);
  if (entry == nullptr) return fail(ESTALE);
  auto fd = arena_.open(handle_of(*entry), O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto done = sys::change_times(fd->get(), times); !done) return done;
  auto kept = shard.times.find(ino);
  if (kept == shard.times.end()) return {};
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  if (times[0].tv_nsec != UTIME_OMIT) kept->second.accessed = attributes->st_atim;
  if (times[1].tv_nsec != UTIME_OMIT) kept->second.modified = attributes->st_mtim;
  kept->second.changed = attributes->st_ctim;
  return {};
}

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
  if (const Entry* entry = shard.find(ino)) show(shard, *entry, *attributes);
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
    show(shard, *entry, attributes);
    return {};
  }
  Entry& entry = shard.find_or_make(handle.ino, handle.generation);
  if (entry.removed) return fail(ESTALE);
  ++entry.lookup_count;
  return {};
}

void Pool::forget(uint64_t ino, uint64_t lookups) {
  EntryTable::Shard& shard = table_.shard(ino);
  KeptByDescriptor kept;  // closed with no lock held: it may be the file's last reference
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(ino);
  if (entry == nullptr) return;
  // Of what was adopted nobody knows how often the kernel was told. It stays while it has a name, since it
  // may have been looked up again before this came; without one it cannot have been.
  if (!entry->lookups_unknown)
    entry->lookup_count -= std::min(entry->lookup_count, lookups);
  else if (entry->removed)
    entry->lookup_count = 0;
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
