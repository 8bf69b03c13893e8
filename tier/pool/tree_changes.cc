// What a pool removes by itself, what it notes of inodes, and pins.
#include <fmt/format.h>

#include <cerrno>

#include "alloc/tree_name.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "base/size.h"
#include "tier/pool/tree.h"

namespace kvcachefs {

Tree::NamesLeft Tree::remove_names(const Entry& entry, int fd, unsigned most) {
  const uint64_t ino = entry.policy.ino;
  const LoggedWork work(surroundings_.read_log());
  unsigned removed = 0;
  const auto what_is_left = [&] { return removed > 0 ? NamesLeft::kFewer : NamesLeft::kAll; };
  UniqueFd other;  // finds another of several names once the first is gone
  int named = fd;
  for (int tries = 0; tries < 3; ++tries) {
    auto attributes = sys::stat_of(fd);
    if (!attributes) return what_is_left();
    if (attributes->st_nlink == 0) return NamesLeft::kNone;
    if (removed >= most) return NamesLeft::kFewer;
    if (const auto found = find_name(arena_, named)) {
      const auto within = sys::stat_of(found->parent.get());
      if (!within) continue;
      // The catalog hears of it first, because after the unlink a newer file may get the name and be in the
      // catalog.
      if (DiskTier* const tier = disk_.tier()) {
        // Where the mark has no room for it, a successor may bring what leaves back.
        (void)disk_.changed_names().note(entry.disk.node_id);
        tier->names.removed(entry, found->parent.get(), found->name);
      }
      if (!sys::unlink_at(found->parent.get(), found->name.c_str(), 0)) continue;
      fault_point("name discarded");
      log_removal(work, AccessRecord::Event::kDiscard, entry, found->parent.get(), found->name);
      note_if_empty(found->parent.get());
      tries = -1;
      ++removed;
      // The listener tells a kernel that knows the inode, and so may know it by this name.
      if (entry.kernel.is_to_be_told())
        surroundings_.listener->discarded(number_, within->st_ino, ino, found->name);
      if (attributes->st_nlink == 1) return NamesLeft::kNone;
    }
    auto again = arena_.open(handle_of(entry), O_PATH);
    if (!again) return what_is_left();
    other = std::move(*again);
    named = other.get();
  }
  return what_is_left();
}

// The name is put together here, because the inode does not lead to it any more.
void Tree::log_removal(const LoggedWork& work, AccessRecord::Event event, const Entry& entry, int directory,
                       std::string_view name) const {
  if (work.is_logged() && entry.is_file())
    work.done(event, number_, entry, insight_.path_in(directory, name));
}

bool Tree::discard_cold(EntryTable::Shard& shard, Entry& entry, RemovalReason reason, unsigned most_names) {
  auto fd = arena_.open(handle_of(entry), O_PATH);
  const NamesLeft left = fd ? remove_names(entry, fd->get(), most_names) : NamesLeft::kAll;
  if (left != NamesLeft::kNone) {
    parked_.park(entry, false, left == NamesLeft::kFewer);
    return false;
  }
  gone(shard, entry, reason);
  return true;
}

void Tree::note_if_empty(int directory) {
  if (directory == arena_.tree_fd()) return;
  const auto attributes = sys::stat_of(directory);
  if (!attributes || !looks_empty(*attributes) || attributes->st_ino == root_ino()) return;
  if (const auto handle = sys::handle_of(directory))
    empty_directories_->emptied({.handle = *handle, .at_top = is_at_top(arena_, directory)});
}

void Tree::made(const sys::Handle& handle, bool is_directory, int directory, const char* name) {
  if (is_directory) empty_directories_->rests({handle}, now_coarse_ms());
  DiskTier* const tier = disk_.tier();
  if (tier == nullptr || disk_.durability() == Durability::kNone) return;
  if (const LockedEntry entry(entries_.shard(handle.ino), handle.ino); entry != nullptr && !entry->is_file())
    tier->names.made(*entry, directory, name);
}

void Tree::attributes_changed(uint64_t ino, bool even_xattrs) {
  if (ino == root_ino()) return;
  disk_.note_changed(ino);
  if (const LockedEntry entry{entries_.shard(ino), ino}) tell_attributes(*entry, even_xattrs);
}

void Tree::tell_catalog(uint64_t ino) {
  if (const LockedEntry entry{entries_.shard(ino), ino}) tell_catalog(*entry, true);
}

void Tree::tell_attributes(Entry& entry, bool even_xattrs) {
  inodes_.touched(entry);
  tell_catalog(entry, even_xattrs);
}

void Tree::tell_catalog(Entry& entry, bool even_xattrs) {
  DiskTier* const tier = disk_.tier();
  if (tier == nullptr || tier->names.id_of(entry) == 0) return;
  auto fd = arena_.open(handle_of(entry), O_PATH | O_NOFOLLOW);
  if (!fd) return;
  if (!entry.is_file()) tier->names.touched(entry.policy.ino, fd->get());
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return;
  inodes_.show(entry, *attributes);
  tier->names.changed(entry, fd->get(), *attributes, even_xattrs);
}

void Tree::look_again(uint64_t directory_ino, std::string name) {
  surroundings_.listener->appeared(number_, directory_ino, std::move(name));
}

Result<void> Tree::set_pinned(uint64_t ino, bool pinned) {
  const uint64_t limit = capacity_.limit().pinned_max_bytes();
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return fail(ESTALE);
  if (!entry->is_file()) return fail(EPERM, "only regular files can be pinned");
  if (entry->pinned == pinned) return {};
  auto fd = arena_.open(handle_of(*entry), O_PATH);
  auto attributes = fd ? sys::stat_of(fd->get()) : pass(fd);
  if (!attributes) return pass(attributes);
  if (!pinned)
    entries_.unpinned(*entry);
  else if (!entries_.pinned(*entry, bytes_of(*attributes).whole, limit))
    return fail(ENOSPC, fmt::format("pool {}: {} are pinned and pinned_max is {}: no room to pin {} more",
                                    name_, format_size(entries_.sums().pinned_bytes()), format_size(limit),
                                    format_size(entry->pin_bytes())));
  if (pinned)
    (void)sys::set_xattr(fd->get(), kPinnedXattr, "1", 0);
  else
    (void)sys::remove_xattr(fd->get(), kPinnedXattr);
  tell_attributes(*entry);
  if (DiskTier* const tier = disk_.tier()) {
    // A pinned entry has to be in memory.
    if (pinned && entry->tier == Entry::Tier::kCold)
      (void)tier->promoter.request(ino, Promoter::kOpenPriority - 1);
  }
  return {};
}

void Tree::lost_its_pin(Entry& entry) {
  static LogLimit log_limit;
  log_limit.warning("pool {}: unpinned inode {}: with it more than pinned_max would be pinned", name_,
                    entry.policy.ino);
  if (auto fd = arena_.open(handle_of(entry), O_PATH)) {
    keep_ctime(entry.kept, fd->get(), is_supervised());
    (void)sys::remove_xattr(fd->get(), kPinnedXattr);
  }
}

void Tree::set_priority(uint64_t ino, int priority) {
  if (const LockedEntry entry{entries_.shard(ino), ino}) entries_.described(*entry, priority);
}

}  // namespace kvcachefs
