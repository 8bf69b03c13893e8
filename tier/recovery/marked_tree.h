// The tree of an adopted pool, by the marks on its inodes (tier/catalog/copy_mark.h): which nodes of the
// catalog are in it, and where. One thread, but for those of walk(), before the pool is served. Failure:
// walk() fails if it could not look at everything; what a later call cannot look at, it leaves out.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "tier/catalog/copy_mark.h"
#include "tier/children.h"
#include "tier/disk/disk_tier.h"
#include "tier/entries/entries.h"

namespace kvcachefs {

class MarkedTree {
 public:
  struct Place {
    uint64_t parent_ino = 0;
    std::string name;
  };
  struct Node {
    sys::Handle handle;
    CopyMark mark;  // for a dirty file with the content that the catalog has
    bool is_file = false;
    bool seen = false;     // the catalog has it
    bool emptied = false;  // dirty, and truncated to 0 bytes after the catalog got its content
    std::optional<CatalogNames::Place> emptied_as;  // the name at which it was, if it still has that name
    uint32_t doubted_version = 0;  // of a copy that its mark tells of and the catalog does not; 0: none
    bool plain = false;            // a file that has no other xattr than the mark
    bool pinned = false;
    struct stat attributes {};  // as its users see it
    std::vector<Place> places;

    bool is_dirty() const { return is_file && mark.state == CopyMark::State::kNone; }
    bool is_clean() const { return is_file && mark.state == CopyMark::State::kClean; }
  };
  using Nodes = std::unordered_map<uint64_t, Node>;  // by the catalog's number

  MarkedTree(const MemoryArena& arena, Entries& entries, DiskTier& tier)
      : arena_(arena), entries_(entries), tier_(tier), ids_{{arena.tree().ino, kCatalogRoot}} {}

  Result<void> walk(const OnSeveralThreads& on_several_threads);
  Nodes& nodes() { return nodes_; }
  Result<CatalogNode> describe(uint64_t id, const Node& node) const;
  // The directories of a node's names get their numbers here if they have none: they were made while the disk
  // was away (tier/disk/away_disk.h).
  std::set<CatalogNames::Place> names_of(const Node& node);
  std::optional<CatalogNames::Place> emptied_as(const Node& node);
  std::vector<CatalogChange>& new_directories() { return new_directories_; }
  // True if a regular file has the name in the tree that the catalog does not have, or not by this name.
  bool is_replaced(const CatalogNames::Place& place) const;

 private:
  struct Unnumbered {
    sys::Handle handle;
    Place place;
  };
  Result<void> look_at(int directory, uint64_t directory_ino, const Child& child) EXCLUDES(mutex_);
  Result<void> note(int fd, bool is_file, Place place) EXCLUDES(mutex_);
  uint64_t id_of_directory(uint64_t ino);  // 0: the directory cannot be looked at
  uint64_t number(uint64_t ino, uint64_t parent_id);

  const MemoryArena& arena_;
  Entries& entries_;
  DiskTier& tier_;
  Mutex mutex_;  // of the others, and of what the store has seen, while walk() has several threads
  Nodes nodes_;
  std::unordered_map<uint64_t, uint64_t> ids_;           // directories' numbers, by inode number
  std::unordered_map<uint64_t, Unnumbered> unnumbered_;  // directories without a number, by inode number
  std::vector<CatalogChange> new_directories_;
};

}  // namespace kvcachefs
