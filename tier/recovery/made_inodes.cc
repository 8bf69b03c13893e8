#include "tier/recovery/made_inodes.h"

#include <fcntl.h>

#include <utility>

#include "alloc/tree_name.h"
#include "base/progress.h"

namespace kvcachefs {

// Goes backwards, because a directory can go only after what is in it.
void MadeInodes::take_back() {
  for (; !made_.empty(); made_.pop_back()) {
    count_step();
    const Made& made = made_.back();
    EntryTable::Shard& shard = entries_.shard(made.handle.ino);
    const LockedEntry entry(shard, made.handle.ino);
    auto fd = arena_.open(made.handle, O_PATH | O_NOFOLLOW);
    if (!fd) continue;
    if (entry != nullptr) entries_.contents().lost_copies(*entry);
    Entry nameless;
    nameless.policy.ino = made.handle.ino;
    const bool removed = made.is_directory ? remove_directory(fd->get())
                                           : tree_.remove_names(entry != nullptr ? *entry : nameless,
                                                                fd->get()) == Tree::NamesLeft::kNone;
    if (removed) entries_.shares().gone(made.handle.ino);
    if (!removed || entry == nullptr) continue;
    auto kept = tree_.keep_inode(handle_of(*entry), std::move(*fd));
    tree_.gone(shard, *entry, RemovalReason::kDeleted, kept ? std::move(*kept) : KeptByDescriptor());
  }
}

bool MadeInodes::remove_directory(int fd) {
  auto found = find_name(arena_, fd);
  if (!found || !sys::unlink_at(found->parent.get(), found->name.c_str(), AT_REMOVEDIR)) return false;
  limits_.lost_directory();
  return true;
}

}  // namespace kvcachefs
