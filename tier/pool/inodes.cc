#include "tier/pool/inodes.h"

#include <algorithm>
#include <cerrno>

#include "base/clock.h"

namespace kvcachefs {
namespace {

// Blocks that the daemon has claimed beyond the end are not shown to users until a client writes there.
void hide_reservation(const Entry& entry, struct stat& attributes) {
  if (entry.memory.reserved_end == 0) return;
  const auto most = static_cast<blkcnt_t>(rounded_up(size_of(attributes)) / kStatBlockBytes);
  attributes.st_blocks = std::min(attributes.st_blocks, most);
}

}  // namespace

void Inodes::show(const Entry& entry, struct stat& attributes) const {
  if (!entry.is_file()) {
    if (DiskTier* const tier = disk_.tier()) tier->names.show(entry.policy.ino, attributes);
    return;
  }
  hide_reservation(entry, attributes);
  if (const KeptTimes* const kept = entry.disk.times()) {
    attributes.st_atim = kept->accessed;
    attributes.st_mtim = kept->modified;
    attributes.st_ctim = kept->changed;
  } else {
    show_ctime(entry.kept, attributes);
  }
}

void Inodes::touched(Entry& entry) {
  KeptTimes* const moving = entry.disk.times();
  if (moving == nullptr && entry.kept.ctime_ns == 0) return;
  auto fd = arena_.open(handle_of(entry), O_RDONLY | O_NONBLOCK | O_NOATIME);
  if (!fd) return;
  if (moving == nullptr) return forget_ctime(entry.kept, fd->get(), is_supervised());
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return;
  moving->changed = attributes->st_ctim;
  show(entry, *attributes);
  begin_unseen(entry.kept, fd->get(), *attributes, is_supervised());
}

Result<void> Inodes::set_times(uint64_t ino, const std::array<timespec, 2>& times) {
  if (ino == root_ino()) return sys::change_times(arena_.tree_fd(), times);
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return fail(ESTALE);
  auto fd = arena_.open(handle_of(*entry), O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto done = sys::change_times(fd->get(), times); !done) return done;
  KeptTimes* const kept = entry->disk.times();
  if (kept == nullptr) return {};
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  if (times[0].tv_nsec != UTIME_OMIT) kept->accessed = attributes->st_atim;
  if (times[1].tv_nsec != UTIME_OMIT) kept->modified = attributes->st_mtim;
  kept->changed = attributes->st_ctim;
  return {};
}

void Inodes::change_mode_unless_written(uint64_t ino, mode_t mode) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || entry->writer_count > 0) return;
  if (const auto fd = arena_.open(handle_of(*entry), O_PATH)) (void)sys::change_mode(fd->get(), mode);
}

Result<Directory> Inodes::directory(uint64_t ino) {
  if (ino == root_ino()) return Directory{arena_.tree_fd(), {}};
  auto fd = open_inode(ino, O_PATH | O_DIRECTORY);
  if (!fd) return pass(fd);
  const int number = fd->get();
  return Directory{number, std::move(*fd)};
}

Result<UniqueFd> Inodes::open_inode(uint64_t ino, int flags) {
  if (ino == root_ino()) return arena_.open(arena_.tree(), flags);
  sys::Handle handle;
  {
    const LockedEntry entry(entries_.shard(ino), ino);
    if (entry == nullptr) return fail(ESTALE);
    handle = handle_of(*entry);
  }
  // Because an inode that is just being discarded holds a lease of this process, an open without O_NONBLOCK
  // would wait for its own process.
  auto fd = arena_.open(handle, flags | ((flags & O_PATH) != 0 ? 0 : O_NONBLOCK));
  if (!fd && fd.error().code == EWOULDBLOCK) return fail(ESTALE);
  return fd;
}

Result<struct stat> Inodes::attributes(uint64_t ino) {
  // The kernel asks for the root after every create and rename in it, to check permissions.
  if (ino == root_ino()) return sys::stat_of(arena_.tree_fd());
  auto fd = open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  // The shard is held, so that no change of the daemon's own (tier/kept_ctime.h) is seen half done.
  const LockedEntry entry(entries_.shard(ino), ino);
  // A client that asks for the blocks after its close is told them without holes, also if the kernel had not
  // let go of the file yet when it told of the close.
  if (entry != nullptr && entry->memory.reserved_end > 0 && entry->may_be_closed())
    reservations_.give_back_holes(*entry);
  auto attributes = sys::stat_of(fd->get());
  if (attributes && entry != nullptr) show(*entry, *attributes);
  return attributes;
}

Result<void> Inodes::looked_up(sys::Handle handle, struct stat& attributes) {
  EntryTable::Shard& shard = entries_.shard(handle.ino);
  MutexLock lock(shard.mutex);
  return count_lookup(shard, handle, attributes);
}

Result<LookedUp> Inodes::look_up(sys::Handle handle, int directory, const char* name, bool sought) {
  EntryTable::Shard& shard = entries_.shard(handle.ino);
  MutexLock lock(shard.mutex);
  auto attributes = sys::stat_at(directory, name);
  if (!attributes) return pass(attributes);
  if (attributes->st_ino != handle.ino) return fail(ESTALE);
  if (auto counted = count_lookup(shard, handle, *attributes); !counted) return pass(counted);
  Entry& entry = *shard.find(handle.ino);
  entry.kernel.sought |= sought;
  return LookedUp{*attributes, entry.writer_count > 0};
}

bool Inodes::may_be_written(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr || !entry->is_file()) return false;
  if (entry->writer_count > 0) return true;
  // A copy on the disk proves that no process could write when it was made. In daemon I/O a mapping keeps its
  // file open, so writer_count tells of it.
  if (entry->tier != Entry::Tier::kDirty || surroundings_.backing_store->needs_write_access()) return false;
  return may_be_written_past(*entry);
}

bool Inodes::may_be_written_past(const Entry& entry) const {
  const auto fd = arena_.open(handle_of(entry), O_RDONLY | O_NONBLOCK | O_NOATIME);
  if (!fd || !sys::set_lease(fd->get(), F_RDLCK)) return true;
  (void)sys::set_lease(fd->get(), F_UNLCK);
  return false;
}

Result<void> Inodes::count_lookup(EntryTable::Shard& shard, sys::Handle handle, struct stat& attributes) {
  if (shard.find(handle.ino) == nullptr && handle.ino != root_ino()) {
    // Every regular file that has a name has an entry: one without an entry has been discarded this moment.
    if (S_ISREG(attributes.st_mode)) return fail(ESTALE);
    // A directory that the kernel did not know may have left this moment. From here on it stays.
    auto fd = arena_.open(handle, O_PATH | O_NOFOLLOW);
    auto now = fd ? sys::stat_of(fd->get()) : pass(fd);
    if (!now) return pass(now);
    if (now->st_nlink == 0) return fail(ESTALE);
  }
  Entry& entry = shard.find_or_make(handle.ino, handle.generation);
  if (entry.removed) return fail(ESTALE);
  ++entry.kernel.lookup_count;
  entry.kernel.looked_up_ms = static_cast<uint32_t>(now_coarse_ms());
  show(entry, attributes);
  return {};
}

void Inodes::looked_for_nothing(uint64_t directory_ino) {
  count(counters_.lookups_missed);
  if (const LockedEntry entry{entries_.shard(directory_ino), directory_ino}) entry->kernel.missed_in = true;
}

void Inodes::forget(uint64_t ino, uint64_t lookups) {
  EntryTable::Shard& shard = entries_.shard(ino);
  KeptByDescriptor kept;  // closed with no lock held: it may be the file's last reference
  const LockedEntry entry(shard, ino);
  if (entry == nullptr) return;
  // For an adopted inode the number of lookups that the kernel was told is unknown. It stays while it has a
  // name, because it may have been looked up again before this FORGET came; without a name it cannot have
  // been.
  if (!entry->kernel.lookups_unknown)
    entry->kernel.lookup_count -= std::min(entry->kernel.lookup_count, lookups);
  else if (entry->removed)
    entry->kernel.lookup_count = 0;
  if (entry->kernel.lookup_count > 0) return;
  entry->kernel.sought = false;
  if (entry->open_count > 0) return;
  if (entry->is_file() && !entry->removed) return;
  if (auto found = shard.kept.find(ino); found != shard.kept.end()) kept = std::move(found->second);
  entries_.shares().erase(shard, ino);
}

uint32_t Inodes::generation_of(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  return entry == nullptr ? 0 : entry->generation;
}

bool Inodes::root_is_known() {
  const LockedEntry root(entries_.shard(root_ino()), root_ino());
  return root != nullptr && root->kernel.lookup_count > 0;
}

}  // namespace kvcachefs
