// DirectoryReclaimer removes empty directories of a pool, to make room for inodes and for new directories. An
// object is one turn of the evictor (tier/pool/evictor_inodes.cc), of whose thread it is.
//
// A directory leaves only if it is empty, which its removal proves, and if no process has it open, watched,
// as its working directory or mounted somewhere: each of these keeps the kernel from forgetting its inode.
// The kernel's caches do so too, so the kernel is asked first to let go of the directory. A directory that a
// client made or looked up less than a minute ago stays, because `mkdir -p` and the create in it are two
// calls. If inodes are so short that entries would have to leave soon, a second has to be enough. The oldest
// directories leave first. Failure: a directory that cannot leave stays in the list or rests again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>
#include <vector>

#include "tier/pool/empty_directories.h"
#include "tier/pool/kernel_side.h"
#include "tier/pool/pool_part.h"
#include "tier/pool/tree.h"

namespace kvcachefs {

class DirectoryReclaimer : PoolPart {
 public:
  static constexpr size_t kLooksATurn = 256;  // resting directories that settle() looks at in one call

  DirectoryReclaimer(const PoolPart& part, Tree& tree);

  // Directories that have rested become ripe if they are empty and are struck off if not. True: more have
  // rested.
  bool settle(size_t most);
  // How many directories are to leave, and how many of them even if they have rested for a second only.
  struct Wanted {
    uint64_t all = 0;
    uint64_t even_young = 0;
  };
  // `drops`: names may be dropped.
  void reclaim(Wanted wanted, bool drops);

  uint64_t removed() const { return removed_; }
  bool has_more() const { return has_more_; }  // to look at in the next turn

 private:
  // kOver: the directory is gone or not empty. kHeld: it cannot go now. kKnown: the kernel has to let go of
  // it first.
  enum class Fate { kOver, kHeld, kKnown, kRemoved };

  DiscardListener::Told told();
  bool ask(const EmptyDirectories::Directory& directory, bool by_name);
  void hear(const EmptyDirectories::Asked& asked);
  // Says whether the kernel may have kept the directory though no process holds it: the kernel cannot be
  // asked to let go, or remembers misses in it.
  bool may_be_dropped(const EmptyDirectories::Asked& asked);
  Fate look(sys::Handle handle, const EmptyDirectories::Asked* asked);
  Fate remove(EntryTable::Shard& shard, Entry* entry, uint64_t ino, int fd) REQUIRES(shard.mutex);

  Tree& tree_;
  EmptyDirectories& list_;
  const uint64_t now_ms_;
  uint64_t rest_ms_;  // how long a directory rests
  std::vector<uint64_t> to_let_go_;
  std::unordered_set<uint64_t> parents_;
  uint64_t removed_ = 0;
  bool has_more_ = false;
  bool drops_ = false;
};

}  // namespace kvcachefs
