// CatalogNames tells the catalog the names of a pool, and keeps what differs between the catalog's names and
// those of the tmpfs. A file's name comes into the catalog with the file's first content, so the two differ
// until it is spilled. Any thread. Failure: a name that cannot be resolved any more (ESTALE) changes nothing.
//
// tree() is a lock (order: ARCHITECTURE.md). The thread that renames, links or removes a directory holds it
// over the system call and the change that reports it; introduce() takes it, too.
//
// A stale file is one that the catalog has but that a user has since cut to nothing, to give it another
// content. It gets no new name in the catalog before its new content is there: after a crash its old content
// would appear under a name it never had. Until then its new names are kept here. Where it would lose its
// last name, the catalog withholds it: it gets a name in no directory (kCatalogWithheld), which a start
// removes.
//
// `id` is the catalog's number for an inode, 0 if the catalog does not have the inode. `directory` is a
// descriptor of the directory that a name is, or was, in. The caller holds the entry's shard, so the entry's
// names do not change meanwhile.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "alloc/memory_arena.h"
#include "base/mutex.h"
#include "tier/catalog/catalog_log.h"
#include "tier/catalog/copy_mark.h"
#include "tier/disk/spill_store.h"
#include "tier/entries/entry.h"

namespace kvcachefs {

class CatalogNames {
 public:
  // `marks`: a successor may come, so the inodes are marked for it (tier/catalog/copy_mark.h).
  CatalogNames(SpillStore& store, const MemoryArena& arena, bool marks)
      : store_(store), arena_(arena), marks_(marks) {}

  Mutex& tree() RETURNS_LOCK(tree_) { return tree_; }
  uint64_t id_of(const Entry& entry) const EXCLUDES(mutex_);

  // False for a file that introduce() will fail for, as its users have made it: its path is longer than
  // PATH_MAX and its name or its directory not known yet, or its xattrs' names are longer than XATTR_LIST_MAX
  // together.
  bool can_describe(int fd) const;
  // The changes that the catalog must hear before a file's content: the file's node, and its names if they
  // are new to the catalog. Gives the entry its number.
  Result<std::vector<CatalogChange>> introduce(Entry& entry, int fd) EXCLUDES(tree_, mutex_);
  // Mode, owner, times or (`even_xattrs`) xattrs have changed of an inode that the catalog has; `shown` is
  // what users see of the inode.
  void changed(const Entry& entry, int fd, const struct stat& shown, bool even_xattrs) EXCLUDES(mutex_);
  // show() sets the attributes that users see of an inode which is no regular file; touched(): they have just
  // changed it.
  void show(uint64_t ino, struct stat& attributes) const EXCLUDES(mutex_);
  void touched(uint64_t ino, int fd) EXCLUDES(mutex_);
  // A directory, a symlink or another inode without content has been made.
  void made(const Entry& entry, int directory, const std::string& name) EXCLUDES(tree_, mutex_);

  void keep_directory(int directory) EXCLUDES(tree_, mutex_);  // and all directories above it
  // keep() puts an inode that is no regular file into the catalog, unless the catalog has it.
  void keep(int directory, const std::string& name) EXCLUDES(tree_, mutex_);

  // The name goes. The call precedes the system call where a newer file could otherwise get the name in
  // between.
  void removed(const Entry& entry, int directory, const std::string& name) EXCLUDES(mutex_);
  void gone(const Entry& entry) EXCLUDES(mutex_);
  void renamed(const Entry& entry, int from, const std::string& old_name, int to, const std::string& new_name,
               const Entry* replaced) REQUIRES(tree_) EXCLUDES(mutex_);
  void exchanged(const Entry& a, const Entry& b, int a_was_in, const std::string& a_name, int b_was_in,
                 const std::string& b_name) REQUIRES(tree_) EXCLUDES(mutex_);
  void before_link(const Entry& entry, int fd) REQUIRES(tree_) EXCLUDES(mutex_);
  // has_link() reports a name of a file that got its names before there was a catalog and that the catalog
  // does not have.
  void has_link(const Entry& entry, int directory, const std::string& name) EXCLUDES(tree_, mutex_);
  void linked(const Entry& entry, int directory, const std::string& name) REQUIRES(tree_) EXCLUDES(mutex_);

  size_t withheld() const EXCLUDES(mutex_);

  // known() is called at start: the catalog has this inode, which is no regular file. Unless `fd` is -1, the
  // inode is marked with its number.
  void known(uint64_t ino, uint64_t id, int fd, KeptCtime kept) EXCLUDES(mutex_);
  using Place = std::pair<uint64_t, std::string>;  // the id of a directory, and a name in it
  // These two are called at start, with a name that the catalog gives to an older file than the tmpfs does,
  // and with the names, unknown to the catalog, of a file that was cut to nothing.
  void known_shadowed(Place place) EXCLUDES(mutex_);
  void known_links(uint64_t ino, std::set<Place> places) EXCLUDES(mutex_);

 private:
  uint64_t known_id(uint64_t ino) const EXCLUDES(mutex_);
  uint64_t known_directory(int directory) const EXCLUDES(mutex_);
  void put(uint64_t ino, int directory, const std::string& name) REQUIRES(tree_) EXCLUDES(mutex_);
  Result<uint64_t> put_directory(int directory) REQUIRES(tree_) EXCLUDES(mutex_);
  Result<uint64_t> put_directories(std::string_view path) REQUIRES(tree_) EXCLUDES(mutex_);
  Result<uint64_t> put_as(uint64_t parent, const std::string& name, int fd, uint64_t ino) REQUIRES(tree_)
      EXCLUDES(mutex_);
  // A deep directory came into the catalog when it was made, if at all.
  Result<Place> place_of(int fd) REQUIRES(tree_) EXCLUDES(mutex_);
  bool unshadow(const Place& place) EXCLUDES(mutex_);
  void withhold(const Entry& entry, std::vector<CatalogChange>& changes) EXCLUDES(mutex_);
  void append(CatalogChange change) const;

  SpillStore& store_;
  const MemoryArena& arena_;
  const bool marks_;
  Mutex tree_ ACQUIRED_BEFORE(mutex_);
  mutable Mutex mutex_;
  struct Known {
    uint64_t id = 0;
    KeptCtime kept;
  };
  std::unordered_map<uint64_t, Known> known_ GUARDED_BY(mutex_);  // by inode number; no regular files
  // Names that the catalog gives to an older file than the tmpfs does: the newer file has not been spilled.
  std::set<Place> shadowed_ GUARDED_BY(mutex_);
  // Names that the catalog does not have, of files that have or had several names, or that are withheld.
  std::unordered_map<uint64_t, std::set<Place>> links_ GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> withheld_ GUARDED_BY(mutex_);  // ids
};

// The attributes of an inode; describe_inode() adds target and xattrs, read by a descriptor that may be
// O_PATH.
CatalogNode describe_attributes(const struct stat& shown, uint64_t id, bool pinned);
Result<CatalogNode> describe_inode(int fd, const struct stat& shown, uint64_t id, bool pinned);

}  // namespace kvcachefs
