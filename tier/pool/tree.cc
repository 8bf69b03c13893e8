#include "tier/pool/tree.h"

#include <linux/fs.h>

#include <cerrno>
#include <optional>

#include "alloc/tree_name.h"
#include "tier/pool/counted_inode.h"

namespace kvcachefs {
namespace {

constexpr unsigned kRenameTries = 8;

// The entry; or `unknown`, which has only the inode number, if there is no entry. The entry is not copied,
// because only Candidates may read its place there.
const Entry& known(EntryTable::Shard& shard, uint64_t ino, Entry& unknown) REQUIRES(shard.mutex) {
  if (const Entry* entry = shard.find(ino)) return *entry;
  unknown.policy.ino = ino;
  return unknown;
}

// A directory's other names are those of directories in it.
bool is_last_name(const struct stat& attributes) {
  return S_ISDIR(attributes.st_mode) || attributes.st_nlink == 1;
}

}  // namespace

Result<KeptByDescriptor> Tree::keep_inode(sys::Handle handle, UniqueFd fd, bool charged) {
  Survivors* const survivors = surroundings_.survivors;
  if (survivors == nullptr) return KeptByDescriptor(std::move(fd), nullptr, 0, {});
  const auto attributes = sys::stat_of(fd.get());
  if (!attributes) return fail(attributes.error().code);
  auto charge = charged ? survivors->descriptors().charge(attributes->st_uid, number_)
                        : Result<DescriptorBudget::Charge>(DescriptorBudget::Charge());
  if (!charge) return pass(charge);
  const auto place = survivors->kept_inodes().keep(
      {.inode = {number_, handle.ino}, .generation = handle.generation, .fd = fd.get()});
  // The inode is kept without a place as well, but only as long as this process lives.
  return KeptByDescriptor(std::move(fd), place ? &survivors->kept_inodes() : nullptr, place.value_or(0),
                          std::move(*charge));
}

Result<KeptByDescriptor> Tree::keep_nameless(const Entry* entry, sys::Handle handle, int directory,
                                             const char* name) {
  if (entry == nullptr || (entry->open_count == 0 && entry->is_file() && !entry->kernel.sought))
    return KeptByDescriptor();
  auto fd = sys::open_at(directory, name, O_PATH | O_NOFOLLOW);
  auto kept = fd ? keep_inode(handle, std::move(*fd)) : pass(fd);
  // The removal goes on, because it makes room and the inode may belong to another user. An open file keeps
  // itself as long as this process lives, by its descriptor or backing id; of a directory only the attributes
  // are lost.
  if (!kept && entry->direct_count == 0) return KeptByDescriptor();
  return kept;
}

void Tree::gone(EntryTable::Shard& shard, Entry& entry, RemovalReason reason, KeptByDescriptor keep) {
  const uint64_t ino = entry.policy.ino;
  entries_.removed(entry, reason);
  if (entry.open_count == 0 && !keep) entries_.contents().charged(entry, 0);  // nothing keeps its content
  count_for_holder(entries_, entry);
  if (entry.kernel.lookup_count == 0 && entry.open_count == 0)
    entries_.shares().erase(shard, ino);
  else if (keep)
    shard.kept[ino] = std::move(keep);
}

void Tree::count_without_a_name(uint64_t ino, const struct stat& before) {
  if (S_ISDIR(before.st_mode)) limits_.lost_directory();
  if (is_last_name(before)) entries_.shares().gone(ino);
}

void Tree::lost_a_name(EntryTable::Shard& shard, Entry& entry, const struct stat& before,
                       RemovalReason reason, KeptByDescriptor keep) {
  if (entry.is_file()) count(counters_.removes);
  if (is_last_name(before)) return gone(shard, entry, reason, std::move(keep));
  if (const auto fd = arena_.open(handle_of(entry), O_PATH | O_NOFOLLOW))
    count_inode(entries_, &entry, fd->get());
  tell_attributes(entry);
}

Result<void> Tree::will_change_names(EntryTable::Shard& shard, uint64_t ino, mode_t mode, nlink_t names) {
  if (!disk_.lacks_names()) return {};
  if (S_ISDIR(mode)) return fail(EBUSY);
  Entry unknown;
  const Entry& entry = known(shard, ino, unknown);
  if (DiskTier* const tier = disk_.tier())
    return disk_.changed_names().note(S_ISREG(mode) ? entry.disk.node_id : tier->names.id_of(entry));
  const bool may_come_back = !S_ISREG(mode) || &entry == &unknown || entry.disk.node_id != 0 || names > 1;
  return may_come_back ? fail(EBUSY) : Result<void>();
}

Result<void> Tree::remove(int directory, const char* name, bool is_directory, uint64_t request) {
  auto handle = sys::handle_at(directory, name);
  if (!handle) return pass(handle);
  EntryTable::Shard& shard = entries_.shard(handle->ino);
  MutexLock lock(shard.mutex);
  auto attributes = sys::stat_at(directory, name);
  if (!attributes) return pass(attributes);
  Entry* entry = shard.find(handle->ino);
  if (auto may = will_change_names(shard, handle->ino, attributes->st_mode, attributes->st_nlink); !may)
    return may;
  auto keep = keep_nameless(entry, *handle, directory, name);
  if (!keep) return pass(keep);
  DiskTier* const tier = disk_.tier();
  std::optional<MutexLock> tree;
  if (tier != nullptr && is_directory) tree.emplace(tier->names.tree());
  if (surroundings_.survivors != nullptr) surroundings_.survivors->requests().attempt(request);
  const LoggedWork work(surroundings_.read_log());
  if (auto removed = sys::unlink_at(directory, name, is_directory ? AT_REMOVEDIR : 0); !removed)
    return removed;
  count_without_a_name(handle->ino, *attributes);
  if (tier != nullptr) {
    Entry unknown;
    tier->names.removed(known(shard, handle->ino, unknown), directory, name);
  }
  if (entry != nullptr) {
    log_removal(work, AccessRecord::Event::kRemove, *entry, directory, name);
    lost_a_name(shard, *entry, *attributes, RemovalReason::kDeleted, std::move(*keep));
  }
  note_if_empty(directory);
  return {};
}

Result<uint64_t> Tree::remove_directory(EntryTable::Shard& shard, Entry* entry, uint64_t ino, int fd) {
  const auto found = find_name(arena_, fd);
  if (!found) return fail(found.error().code);
  const auto parent = sys::stat_of(found->parent.get());
  if (!parent) return fail(parent.error().code);
  if ((parent->st_mode & S_ISVTX) != 0 && (parent->st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    const auto attributes = sys::stat_of(fd);
    const auto handle = sys::handle_of(fd);
    const auto exists = [this](sys::Handle other) { return arena_.open(other, O_PATH).has_value(); };
    if (!attributes || !handle || empty_directories_->keeps(attributes->st_uid, *handle, exists))
      return fail(EPERM);
  }
  DiskTier* const tier = disk_.tier();
  {
    std::optional<MutexLock> tree;
    if (tier != nullptr) tree.emplace(tier->names.tree());
    if (disk_.lacks_names()) return fail(EBUSY);
    if (auto removed = sys::unlink_at(found->parent.get(), found->name.c_str(), AT_REMOVEDIR); !removed)
      return fail(removed.error().code);
    limits_.lost_directory();
    entries_.shares().gone(ino);
    Entry unknown;
    const Entry& it = known(shard, ino, unknown);
    if (tier != nullptr) {
      tier->names.removed(it, found->parent.get(), found->name);
      if (entry == nullptr) tier->names.gone(it);
    }
  }
  if (entry != nullptr) {
    entry->kernel.lookup_count = 0;
    gone(shard, *entry, RemovalReason::kDeleted);
  }
  note_if_empty(found->parent.get());
  return parent->st_ino;
}

void Tree::was_moved(Entry& entry, const char* new_name, const LoggedWork& work) {
  tell_attributes(entry);
  if (!entry.is_file()) return;
  const bool fresh = entry.stage == Entry::Stage::kFresh;
  entries_.renamed(entry, name_hash_of(new_name));
  work.done(AccessRecord::Event::kRename, number_, entry);
  if (fresh) disk_.spill_by_itself(entry);
}

Result<void> Tree::rename(int from, const char* old_name, int to, const char* new_name, unsigned flags,
                          uint64_t request) {
  if ((flags & RENAME_WHITEOUT) != 0) return fail(EINVAL);
  for (unsigned tries = 1;; ++tries) {
    auto renamed = rename_now(from, old_name, to, new_name, flags, request);
    if (renamed || renamed.error().code != EAGAIN) return renamed;
    if (tries == kRenameTries) return fail(EBUSY);
  }
}

Result<void> Tree::rename_now(int from, const char* old_name, int to, const char* new_name, unsigned flags,
                              uint64_t request) {
  auto source = sys::handle_at(from, old_name);
  if (!source) return pass(source);
  auto target = sys::handle_at(to, new_name);
  const uint64_t target_ino = target ? target->ino : source->ino;
  EntryTable::Shard& source_shard = entries_.shard(source->ino);
  EntryTable::Shard& target_shard = entries_.shard(target_ino);
  ShardPairLock lock(source_shard, target_shard);

  const bool replaces = target && target_ino != source->ino && (flags & RENAME_EXCHANGE) == 0;
  Entry* victim = nullptr;
  Result<KeptByDescriptor> keep;
  Result<struct stat> replaced = fail(ENOENT);
  if (replaces) {
    replaced = sys::stat_at(to, new_name);  // fails if a discard was first
    victim = replaced ? target_shard.find(target_ino) : nullptr;
    keep = keep_nameless(victim, *target, to, new_name);
    if (!keep) return pass(keep);
  }
  bool may_meet_restored = false;
  if (disk_.lacks_names()) {
    const auto moved = sys::stat_at(from, old_name);
    if (!moved) return fail(moved.error().code);
    if (auto may = will_change_names(source_shard, source->ino, moved->st_mode, moved->st_nlink); !may)
      return may;
    const auto met = target ? sys::stat_at(to, new_name) : Result<struct stat>(fail(ENOENT));
    if (met)
      if (auto may = will_change_names(target_shard, target_ino, met->st_mode, met->st_nlink); !may)
        return may;
    // A restore for which no request waits may bring this name back at any moment.
    may_meet_restored = !target && flags == 0;
    if (may_meet_restored) flags = RENAME_NOREPLACE;
  }
  const LoggedWork work(surroundings_.read_log());
  const auto rename_at = [&] {
    if (surroundings_.survivors != nullptr)
      surroundings_.survivors->requests().attempt_rename(request, source->ino, target ? target->ino : 0);
    return sys::rename_at(from, old_name, to, new_name, flags);
  };
  Result<void> renamed;
  if (DiskTier* const tier = disk_.tier()) {
    MutexLock tree(tier->names.tree());
    renamed = rename_at();
    // If both names are of one file, the kernel has changed nothing.
    if (renamed && !(target && target_ino == source->ino)) {
      Entry unknown_source, unknown_target;
      const Entry& moved = known(source_shard, source->ino, unknown_source);
      if ((flags & RENAME_EXCHANGE) != 0)
        tier->names.exchanged(moved, known(target_shard, target_ino, unknown_target), from, old_name, to,
                              new_name);
      else
        tier->names.renamed(moved, from, old_name, to, new_name, victim);
    }
  } else {
    renamed = rename_at();
  }
  if (!renamed) return may_meet_restored && renamed.error().code == EEXIST ? fail(EAGAIN) : renamed;
  if (replaced) count_without_a_name(target_ino, *replaced);
  if (victim != nullptr) {
    log_removal(work, AccessRecord::Event::kRemove, *victim, to, new_name);
    lost_a_name(target_shard, *victim, *replaced, RemovalReason::kReplaced, std::move(*keep));
  }
  if (Entry* other = target && (flags & RENAME_EXCHANGE) != 0 ? target_shard.find(target_ino) : nullptr)
    was_moved(*other, old_name, work);
  if (Entry* entry = source_shard.find(source->ino)) was_moved(*entry, new_name, work);
  note_if_empty(from);
  return {};
}

Result<void> Tree::link(uint64_t ino, int directory, const char* name) {
  auto fd = inodes_.open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  EntryTable::Shard& shard = entries_.shard(ino);
  const LockedEntry entry(shard, ino);
  if (entry == nullptr) return fail(ESTALE);
  if (!entry->removed && disk_.lacks_names()) {
    const auto attributes = sys::stat_of(fd->get());
    if (!attributes) return fail(attributes.error().code);
    if (auto may = will_change_names(shard, ino, attributes->st_mode, 2); !may) return may;
  }
  Result<void> linked;
  if (DiskTier* const tier = disk_.tier()) {
    MutexLock tree(tier->names.tree());
    tier->names.before_link(*entry, fd->get());
    linked = sys::link_to(fd->get(), directory, name);
    if (linked) tier->names.linked(*entry, directory, name);
  } else {
    linked = sys::link_to(fd->get(), directory, name);
  }
  if (!linked) return linked;
  count_inode(entries_, entry, fd->get());
  const bool gets_its_first_name = entry->removed;  // an O_TMPFILE
  if (gets_its_first_name) {
    shard.kept.erase(ino);
    if (!entries_.named(*entry, capacity_.limit().pinned_max_bytes())) lost_its_pin(*entry);
  }
  tell_attributes(*entry);
  if (gets_its_first_name && entry->stage == Entry::Stage::kCandidate) disk_.spill_by_itself(*entry);
  ++entry->kernel.lookup_count;
  return {};
}

void Tree::undo_create(int directory, const char* name) {
  const auto handle = sys::handle_at(directory, name);
  if (!handle) return;
  EntryTable::Shard& shard = entries_.shard(handle->ino);
  MutexLock lock(shard.mutex);
  const auto attributes = sys::stat_at(directory, name);
  Entry* const entry = shard.find(handle->ino);
  if (!attributes || attributes->st_ino != handle->ino || !S_ISREG(attributes->st_mode) ||
      attributes->st_size > 0 || attributes->st_nlink > 1 || entry == nullptr || entry->open_count > 0)
    return;
  if (sys::unlink_at(directory, name, 0)) gone(shard, *entry, RemovalReason::kDeleted);
}

}  // namespace kvcachefs
