// Every change of a pool's names and of what its inodes are besides their content: the system call, and what
// follows from it for the entries and for the catalog. Any thread. A name of an inode changes (unlink,
// rename, link, discard) only with the inode's shard held, so a discard cannot remove a name that has just
// become another file's. Functions on inodes fail with ESTALE when the inode is gone.
#pragma once

#include <array>
#include <climits>
#include <cstdint>
#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tier/entries/parked.h"
#include "tier/pool/empty_directories.h"
#include "tier/pool/inodes.h"
#include "tier/pool/insight.h"
#include "tier/pool/pool_disk.h"

namespace kvcachefs {

// What a user asks to be made, and whose it is to be. The mode has the type.
struct NewInode {
  mode_t mode = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  dev_t device = 0;
  const char* target = nullptr;  // of a symbolic link
};
struct MadeInode {
  UniqueFd fd;
  sys::Handle handle;
  struct stat attributes {};
};

inline constexpr uint32_t kSameId = UINT32_MAX;
struct AttributeChange {
  std::optional<mode_t> mode;  // without the type
  uid_t uid = kSameId;
  gid_t gid = kSameId;
  std::optional<std::array<timespec, 2>> times;  // as utimensat(2) takes them
};

class Tree : DiskPart {
 public:
  Tree(const DiskPart& part, const Insight& insight, Parked& parked, Inodes& inodes)
      : DiskPart(part), insight_(insight), parked_(parked), inodes_(inodes) {}

  // --- its users' changes ---
  // `request`: the kernel's number of the request that asks for it, for a successor; 0: none asks.
  Result<void> remove(int directory, const char* name, bool is_directory, uint64_t request = 0);
  Result<void> rename(int from, const char* old_name, int to, const char* new_name, unsigned flags,
                      uint64_t request = 0);
  Result<void> link(uint64_t ino, int directory, const char* name);
  // Makes a name; give() then makes it the user's. The long target of a symbolic link takes a page: in a full
  // pool it waits for room as a write does. An empty name makes a file without one.
  Result<UniqueFd> make_file(int directory, const char* name, mode_t mode, bool ever_linked = true);
  Result<Tried> make(int directory, const char* name, const NewInode& inode, Patience patience = {});
  Result<MadeInode> give(int directory, Result<UniqueFd> fd, const NewInode& inode);
  // Removes what was made for a request that then failed, and what the pool knows of it by now.
  void unmake(int directory, const char* name, bool is_directory);
  // Removes an empty file that is not open, which a process that died has made and no client was told of.
  void undo_create(int directory, const char* name);
  // A directory or other inode without content was made; the catalog hears of it unless durability is none.
  void made(const sys::Handle& handle, bool is_directory, int directory, const char* name);
  // `begun` becomes true when some of the change is done; it stays true if it is.
  Result<void> change(uint64_t ino, const AttributeChange& wanted, bool& begun);
  Result<void> set_xattr(uint64_t ino, const char* name, std::string_view value, int flags);
  Result<void> remove_xattr(uint64_t ino, const char* name);
  // Content or names have changed; the functions above tell of their own changes.
  void attributes_changed(uint64_t ino, bool even_xattrs = false);
  // Tells the catalog of a change that was made before the pool had one. The call takes no lock of the file,
  // because a write past the daemon may hold it.
  void tell_catalog(uint64_t ino);
  // Makes the kernel look the name up again, because its cache may be wrong.
  void look_again(uint64_t directory_ino, std::string name);
  Result<void> set_pinned(uint64_t ino, bool pinned);  // ENOSPC: more than pinned_max
  void set_priority(uint64_t ino, int priority);

  // --- what leaves by itself ---
  // What remove_names() leaves of a file: it removes `most` names at once, because the shard is held and
  // users make as many links as there are inodes.
  enum class NamesLeft { kNone, kFewer, kAll };
  static constexpr unsigned kNamesAtOnce = 64;  // 3 ms
  NamesLeft remove_names(const Entry& entry, int fd, unsigned most = UINT_MAX);
  // Removes what has its content on the disk alone; false: some names are left, to be removed later.
  bool discard_cold(EntryTable::Shard& shard, Entry& entry, RemovalReason reason,
                    unsigned most_names = UINT_MAX) REQUIRES(shard.mutex);
  // Removes an empty directory that the kernel does not know; answers the inode of its parent.
  Result<uint64_t> remove_directory(EntryTable::Shard& shard, Entry* entry, uint64_t ino, int fd)
      REQUIRES(shard.mutex);
  // Called for an entry that was unpinned because it outgrew `pinned_max`: its file gets unpinned too.
  void lost_its_pin(Entry& entry);
  // Called after the entry's last name went.
  void gone(EntryTable::Shard& shard, Entry& entry, RemovalReason reason, KeptByDescriptor keep = {})
      REQUIRES(shard.mutex);
  // EDQUOT: the inode's owner or the pool has used up its share (tier/descriptor_budget.h).
  Result<KeptByDescriptor> keep_inode(sys::Handle handle, UniqueFd fd, bool charged = true);
  void note_if_empty(int directory);
  const std::shared_ptr<EmptyDirectories>& empty_directories() { return empty_directories_; }

 private:
  // EDQUOT: the target takes memory, and the user is over the share.
  Result<Tried> make_symlink(const char* target, uid_t uid, int directory, const char* name,
                             Patience patience);
  // EAGAIN: the name, which the restore has just brought back, was not there a moment before.
  Result<void> rename_now(int from, const char* old_name, int to, const char* new_name, unsigned flags,
                          uint64_t request);
  bool may_not_add(int fd) const;
  void xattr_changed(uint64_t ino, std::string_view name);
  void count_again(uint64_t ino);  // its owner, xattrs or names have changed
  // Called before the last name goes; answers no descriptor for an inode that is not in use.
  Result<KeptByDescriptor> keep_nameless(const Entry* entry, sys::Handle handle, int directory,
                                         const char* name);
  // A name was removed or replaced; `before` are the attributes that the inode had.
  void lost_a_name(EntryTable::Shard& shard, Entry& entry, const struct stat& before, RemovalReason reason,
                   KeptByDescriptor keep) REQUIRES(shard.mutex);
  void count_without_a_name(uint64_t ino, const struct stat& before);
  // The call precedes a change of a name of the inode. While names are brought back it tells a successor, who
  // must not bring back what is changed. EBUSY for a directory, and for what a successor could not be told
  // of. Where the tier is not in use yet, and the catalog cannot be told, that is all that the catalog has or
  // that has several names.
  Result<void> will_change_names(EntryTable::Shard& shard, uint64_t ino, mode_t mode, nlink_t names)
      REQUIRES(shard.mutex);
  void was_moved(Entry& entry, const char* new_name, const LoggedWork& work);  // by a rename
  void log_removal(const LoggedWork& work, AccessRecord::Event event, const Entry& entry, int directory,
                   std::string_view name) const;
  void tell_attributes(Entry& entry, bool even_xattrs = false);  // they have changed
  void tell_catalog(Entry& entry, bool even_xattrs);

  const Insight& insight_;
  Parked& parked_;
  Inodes& inodes_;
  const std::shared_ptr<EmptyDirectories> empty_directories_ = std::make_shared<EmptyDirectories>();
};

}  // namespace kvcachefs
