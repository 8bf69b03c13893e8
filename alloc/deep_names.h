// Names of inodes whose paths are longer than PATH_MAX: the kernel does not tell such a path, and a process
// that changes into the depth makes as many of them as there are inodes. Where such a name is wanted and not
// known, it is sought: a walk of the whole tree, made piece by piece, finds it. What was found is only a
// hint, because users rename at any time: its user proves it (alloc/tree_name.h).
//
// Any thread calls find() and drop(), also with a shard held; the lock here is a leaf. step() belongs to the
// evictor's thread. Never fails: what a walk did not find is sought anew when it is wanted again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/sys.h"

namespace kvcachefs {

class MemoryArena;

class DeepNames {
 public:
  struct Place {
    sys::Handle directory;
    std::string name;
    bool operator==(const Place& other) const {
      return directory.ino == other.directory.ino && name == other.name;
    }
  };

  // The place of one of the inode's names, as the last walk found it. None: it is sought from now on.
  std::optional<Place> find(uint64_t ino) EXCLUDES(mutex_);
  void drop(uint64_t ino, const Place& place) EXCLUDES(mutex_);  // the inode is not there any more
  bool seeks() const EXCLUDES(mutex_);                           // a walk is wanted or under way
  // A piece of a walk, about so long. True: the next may come at once.
  static constexpr uint64_t kPieceNs = 2'000'000;
  bool step(const MemoryArena& arena, uint64_t piece_ns = kPieceNs) EXCLUDES(mutex_);

 private:
  // Both the inodes that one walk seeks and the names that it finds are at most this many: 5 MiB. More are
  // sought by the next.
  static constexpr size_t kMost = 16384;

  using Names = std::vector<std::pair<uint64_t, std::string>>;

  bool begin_walk(const MemoryArena& arena) EXCLUDES(mutex_);
  void end_walk() EXCLUDES(mutex_);
  bool open_next(const MemoryArena& arena);  // the next directory of the walk; false: there is none
  // Some names of the open directory, and its directories to those that the walk has still to come to.
  Names read_some();
  void take(Names names) EXCLUDES(mutex_);

  mutable Mutex mutex_;
  std::unordered_set<uint64_t> wanted_ GUARDED_BY(mutex_);  // by the next walk
  std::unordered_set<uint64_t> sought_ GUARDED_BY(mutex_);  // by the one under way
  std::unordered_map<uint64_t, std::vector<Place>> found_ GUARDED_BY(mutex_);
  size_t found_names_ GUARDED_BY(mutex_) = 0;
  // Of the evictor's thread alone:
  bool walking_ = false;
  std::vector<sys::Handle> pending_;
  sys::Handle directory_;
  sys::DirectoryStream stream_;
  uint64_t spent_ns_ = 0;
  uint64_t next_walk_ns_ = 0;
};

}  // namespace kvcachefs
