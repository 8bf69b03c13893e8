// What users make in a pool, and what they change of it besides names and content.
#include <cerrno>

#include "tier/pool/tree.h"

namespace kvcachefs {
namespace {

constexpr int kLinkAttempts = 40;

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
  if (S_ISLNK(inode.mode)) return make_symlink(inode.target, directory, name, patience);
  auto made = S_ISDIR(inode.mode) ? sys::make_directory_at(directory, name, inode.mode & 07777)
                                  : sys::make_node_at(directory, name, inode.mode, inode.device);
  if (!made) return pass(made);
  if (S_ISDIR(inode.mode)) limits_.made_directory();
  return Tried::kDone;
}

Result<Tried> Tree::make_symlink(const char* target, int directory, const char* name, Patience patience) {
  for (int attempt = 0;; ++attempt) {
    auto made = sys::symlink_at(target, directory, name);
    if (made) return Tried::kDone;
    if (made.error().code != ENOSPC) return pass(made);
    const Waited room = capacity_.wait_for_room(kBlockBytes + Capacity::kCountingSlackBytes, patience);
    if (room == Waited::kWouldWait) return Tried::kWouldWait;
    if (room == Waited::kNoRoom || attempt == kLinkAttempts) {
      insight_.report_full(true);
      return pass(made);
    }
  }
}

Result<MadeInode> Tree::give(int directory, Result<UniqueFd> fd, const NewInode& inode) {
  if (!fd) return pass(fd);
  if (auto given = give_to(directory, fd->get(), inode); !given) return pass(given);
  auto handle = sys::handle_of(fd->get());
  if (!handle) return pass(handle);
  auto attributes = sys::stat_of(fd->get());
  if (!attributes) return pass(attributes);
  return MadeInode{.fd = std::move(*fd), .handle = *handle, .attributes = *attributes};
}

void Tree::unmake(int directory, const char* name, bool is_directory) {
  if (remove(directory, name, is_directory)) return;
  if (sys::unlink_at(directory, name, is_directory ? AT_REMOVEDIR : 0) && is_directory)
    limits_.lost_directory();
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
  if (made || begun) attributes_changed(ino);
  return made;
}

Result<void> Tree::set_xattr(uint64_t ino, const char* name, std::string_view value, int flags) {
  auto fd = inodes_.open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto done = sys::set_xattr(fd->get(), name, value, flags); !done) return done;
  attributes_changed(ino, true);
  return {};
}

Result<void> Tree::remove_xattr(uint64_t ino, const char* name) {
  auto fd = inodes_.open_inode(ino, O_PATH | O_NOFOLLOW);
  if (!fd) return pass(fd);
  if (auto done = sys::remove_xattr(fd->get(), name); !done) return done;
  attributes_changed(ino, true);
  return {};
}

}  // namespace kvcachefs
