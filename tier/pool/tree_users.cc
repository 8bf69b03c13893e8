// The inodes that users make in a pool, and the changes that they make besides those of names and content.
#include <cerrno>
#include <cstring>

#include "tier/index/metadata.h"
#include "tier/pool/counted_inode.h"
#include "tier/pool/tree.h"

namespace kvcachefs {
namespace {

constexpr int kLinkAttempts = 40;
constexpr size_t kLongTarget = 128;  // SHORT_SYMLINK_LEN of Linux: from here on it takes a page

Result<void> give_to(int directory, int fd, const NewInode& inode) {
  // The inode belongs to root already, or to the directory's group.
  if (inode.uid == 0 && inode.gid == 0) return {};
  auto parent = sys::stat_of(directory);
  if (!parent) return pass(parent);
  const gid_t gid = (parent->st_mode & S_ISGID) != 0 ? static_cast<gid_t>(-1) : inode.gid;
  if (auto done = sys::change_owner(fd, inode.uid, gid); !done) return done;
  // A change of owner clears the set-id bits of a regular file, whichever user asks.
  if ((inode.mode & (S_ISUID | S_ISGID)) != 0 && S_ISREG(inode.mode))
    return sys::change_mode(fd, inode.mode & 07777);
  return {};
}

}  // namespace

Result<UniqueFd> Tree::make_file(int directory, const char* name, mode_t mode, bool ever_linked) {
  if (name[0] != '\0')
    return sys::open_at(directory, name, O_CREAT | O_EXCL | O_RDWR | O_NOFOLLOW, mode & 07777);
  return sys::open_at(directory, ".", O_TMPFILE | O_RDWR | (ever_linked ? 0 : O_EXCL), mode & 07777);
}

Result<Tried> Tree::make(int directory, const char* name, const NewInode& inode, Patience patience) {
  if (S_ISLNK(inode.mode)) return make_symlink(inode.target, inode.uid, directory, name, patience);
  auto made = S_ISDIR(inode.mode) ? sys::make_directory_at(directory, name, inode.mode & 07777)
                                  : sys::make_node_at(directory, name, inode.mode, inode.device);
  if (!made) return pass(made);
  if (S_ISDIR(inode.mode)) limits_.made_directory();
  return Tried::kDone;
}

Result<Tried> Tree::make_symlink(const char* target, uid_t uid, int directory, const char* name,
                                 Patience patience) {
  // A long target takes memory and cannot be evicted, so a user over the share may make none.
  if (std::strlen(target) >= kLongTarget && entries_.shares().is_user_over(uid)) return fail(EDQUOT);
  for (int attempt = 0;; ++attempt) {
    auto made = sys::symlink_at(target, directory, name);
    if (made) return Tried::kDone;
    if (made.error().code != ENOSPC) return pass(made);
    const Waited room =
        capacity_.wait_for_room(kBlockBytes + Capacity::kCountingSlackBytes, patience, 0, uid);
    if (room == Waited::kWouldWait) return Tried::kWouldWait;
    if (room == Waited::kNoRoom || attempt == kLinkAttempts) return pass(made);
  }
}

Result<MadeInode> Tree::give(int directory, Result<UniqueFd> fd, const NewInode& inode) {
  if (!fd) return pass(fd);
  if (auto given = give_to(directory, fd->get(), inode); !given) return pass(given);
  auto handle = sys::handle_of(fd->get());
  if (!handle) return pass(handle);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  if (!S_ISREG(attributes->st_mode)) {
    MutexLock lock(entries_.shard(handle->ino).mutex);
    count_inode(entries_, nullptr, fd->get());
  }
  return MadeInode{.fd = std::move(*fd), .handle = *handle, .attributes = *attributes};
}

void Tree::unmake(int directory, const char* name, bool is_directory) {
  if (remove(directory, name, is_directory)) return;
  if (sys::unlink_at(directory, name, is_directory ? AT_REMOVEDIR : 0) && is_directory)
    limits_.lost_directory();
}

void Tree::count_again(uint64_t ino) {
  const LockedEntry entry(entries_.shard(ino), ino);
  if (entry == nullptr) return;
  if (const auto fd = arena_.open(handle_of(*entry), O_PATH | O_NOFOLLOW))
    count_inode(entries_, entry, fd->get());
  count_for_holder(entries_, *entry);
  if (entry->writer_count > 0) capacity_.writers().owned(ino, entry->policy.owner);
}

Result<void> Tree::change(uint64_t ino, const AttributeChange& wanted, bool& begun) {
  const auto made = [&]() -> Result<void> {
    auto fd = inodes_.open_inode(ino, O_PATH | O_NOFOLLOW);
    if (!fd) return pass(fd);
    if (wanted.mode) {
      if (auto done = sys::change_mode(fd->get(), *wanted.mode); !done) return done;
      begun = true;
    }
    if (wanted.uid != kSameId || wanted.gid != kSameId) {
      if (auto done = sys::change_owner(fd->get(), wanted.uid, wanted.gid); !done) return done;
      begun = true;
    }
    if (wanted.times) return inodes_.set_times(ino, *wanted.times);
    return {};
  }();
  if (wanted.uid != kSameId) count_again(ino);
  if (wanted.mode || wanted.uid != kSameId || wanted.gid != kSameId) {
    // The index reads the entry again: a group is of one user's entries, and the index stores who may read an
    // entry.
    if (const LockedEntry entry{entries_.shard(ino), ino}; entry != nullptr && entry->described)
      entries_.described(*entry);
  }
  if (made || begun) attributes_changed(ino);
  return made;
}

// Xattrs take inodes, of which the last are not for those who are over their shares.
bool Tree::may_not_add(int fd) const {
  if (!entries_.shares().has_shares()) return false;
  const auto attributes = sys::stat_of(fd);
  const ArenaUsage now = arena_.usage();
  return attributes && entries_.shares().is_user_over(attributes->st_uid) &&
         now.free_inodes < now.inodes / kInodeReserve;
}

Result<void> Tree::set_xattr(uint64_t ino, const char* name, std::string_view value, int flags) {
  auto fd = inodes_.open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (may_not_add(fd->get())) return fail(ENOSPC);
  if (auto done = sys::set_xattr(fd->get(), name, value, flags); !done) return done;
  xattr_changed(ino, name);
  return {};
}

Result<void> Tree::remove_xattr(uint64_t ino, const char* name) {
  auto fd = inodes_.open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto done = sys::remove_xattr(fd->get(), name); !done) return done;
  xattr_changed(ino, name);
  return {};
}

void Tree::xattr_changed(uint64_t ino, std::string_view name) {
  count_again(ino);
  attributes_changed(ino, true);
  if (!is_metadata(name)) return;
  if (const LockedEntry entry{entries_.shard(ino), ino}) entries_.described(*entry);
}

}  // namespace kvcachefs
