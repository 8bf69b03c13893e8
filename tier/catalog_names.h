// The names of a pool as its catalog has them, beside those that the tmpfs has. A file's name comes to the
// catalog with its first content, so the two differ while it has not been spilled. Any thread. Failure: a
// name that cannot be resolved any more (ESTALE) changes nothing.
//
// Lock order: entry shards -> tree() -> this one's own -> the log's. tree() is held by who renames, links or
// removes a directory, over the system call and the change that says so, and by introduce().
//
// A file that the catalog has, but that has been cut to nothing since, to become another, gets no new name
// there before its new content is there: a crash would show the old one under a name it never had. Until then
// its new names are kept here, and where it would lose its last one the catalog holds it by a name in no
// directory (kCatalogWithheld), which a start removes.
//
// `id` is the number that the catalog has for an inode, 0 if it does not have it. A `directory` is a
// descriptor of the directory that a name is, or was, in. An entry's shard is held, so its names stay as they
// are.
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
#include "tier/catalog_log.h"
#include "tier/copy_mark.h"
#include "tier/entry.h"
#include "tier/spill_store.h"

namespace kvcachefs {

class CatalogNames {
 public:
  // `marks`: a successor may come (tier/copy_mark.h).
  CatalogNames(SpillStore& store, const MemoryArena& arena, bool marks)
      : store_(store), arena_(arena), marks_(marks) {}

  Mutex& tree() { return tree_; }
  uint64_t id_of(const Entry& entry) const EXCLUDES(mutex_);

  // What the catalog has to hear of a file before its content: its node, and its names if they are new to it.
  // Gives the entry its number.
  Result<std::vector<CatalogChange>> introduce(Entry& entry, int fd) EXCLUDES(tree_, mutex_);
  // Mode, owner, times or xattrs of an inode that the catalog has are others now.
  void changed(const Entry& entry, int fd) EXCLUDES(mutex_);
  // A directory, symlink or other inode without content has been made.
  void made(const Entry& entry, int directory, const std::string& name) EXCLUDES(tree_, mutex_);

  void keep_directory(int directory) EXCLUDES(tree_, mutex_);  // with all above it
  // What is no regular file, if the catalog does not have it.
  void keep(int directory, const std::string& name) EXCLUDES(tree_, mutex_);

  // The name goes: before the system call where nobody else keeps a newer file from getting the name
  // meanwhile.
  void removed(const Entry& entry, int directory, const std::string& name) EXCLUDES(mutex_);
  void gone(const Entry& entry) EXCLUDES(mutex_);
  void renamed(const Entry& entry, int from, const std::string& old_name, int to, const std::string& new_name,
               const Entry* replaced) REQUIRES(tree_) EXCLUDES(mutex_);
  void exchanged(const Entry& a, const Entry& b, int a_was_in, const std::string& a_name, int b_was_in,
                 const std::string& b_name) REQUIRES(tree_) EXCLUDES(mutex_);
  void before_link(const Entry& entry, int fd) REQUIRES(tree_) EXCLUDES(mutex_);
  // One of the names of a file that got them before there was a catalog, and that the catalog does not have.
  void has_link(const Entry& entry, int directory, const std::string& name) EXCLUDES(tree_, mutex_);
  void linked(const Entry& entry, int directory, const std::string& name) REQUIRES(tree_) EXCLUDES(mutex_);

  size_t withheld() const EXCLUDES(mutex_);

  // At start: an inode that is no regular file and that the catalog has. Its number is written down with it,
  // unless `fd` is -1.
  void known(uint64_t ino, uint64_t id, int fd) EXCLUDES(mutex_);
  using Place = std::pair<uint64_t, std::string>;  // a directory's id and a name
  // The same of a name that the catalog gives to an older file than the tmpfs does, and of the names of a
  // file that was cut to nothing which the catalog does not have.
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
  Result<Place> place_of(int fd) REQUIRES(tree_) EXCLUDES(mutex_);
  bool unshadow(const Place& place) EXCLUDES(mutex_);
  void withhold(const Entry& entry, std::vector<CatalogChange>& changes) EXCLUDES(mutex_);
  void append(CatalogChange change) const;

  SpillStore& store_;
  const MemoryArena& arena_;
  const bool marks_;
  Mutex tree_;
  mutable Mutex mutex_;
  std::unordered_map<uint64_t, uint64_t> ids_ GUARDED_BY(mutex_);  // of what is no regular file
  // Names that the catalog gives to an older file than the tmpfs does: the newer one has not been spilled.
  std::set<Place> shadowed_ GUARDED_BY(mutex_);
  // The names of files that have, or had, several, or are withheld, and that the catalog does not have.
  std::unordered_map<uint64_t, std::set<Place>> links_ GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> withheld_ GUARDED_BY(mutex_);  // ids
};

// Mode, owner, times, target and xattrs of an inode, by a descriptor that may be O_PATH.
CatalogNode describe_attributes(const struct stat& attributes, uint64_t id, bool pinned);
Result<CatalogNode> describe_inode(int fd, uint64_t id, bool pinned);

}  // namespace kvcachefs
