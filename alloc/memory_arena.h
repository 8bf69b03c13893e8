// A pool's memory: one tmpfs whose `tree` directory is the pool's name tree. Because of the mount's size=,
// the pool cannot exceed its size even if all else fails. Any thread; the object is immutable except for
// resize(), which one thread at a time may call. Failure: errno and a message that names
// the path. The destructor unmounts lazily: open files keep their bytes until they close.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "alloc/deep_names.h"
#include "base/result.h"
#include "base/sys.h"
#include "base/unique_fd.h"

namespace kvcachefs {

// What the kernel and the daemon take for one inode of a pool as a tmpfs counts them, which its size= does
// not count. Measured with the kernel's caches dropped (docs/facts.md "What an inode takes"): a directory
// takes 1,584 bytes, an entry 1,440, a symbolic link 1,310. An entry on the disk takes the most, 2,226, and
// counts as 1.22 inodes: its marks are xattrs, of which each 1,024 bytes count as one (Linux 6.6).
inline constexpr uint64_t kInodeBytes = 1856;
// So many are not counted: 7 MiB, which a small pool needs to be of use.
inline constexpr uint64_t kFreeInodes = 4096;

// So much of a pool's inodes is kept free, by eviction.
inline constexpr uint64_t kInodeReserve = 50;

// The size of a pool that so many inodes fit in: half of it is theirs at most.
constexpr uint64_t least_size_for_inodes(uint64_t inodes) {
  return (inodes - std::min(inodes, kFreeInodes)) * kInodeBytes * 2;
}

struct ArenaUsage {
  uint64_t size_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t inodes = 0;
  uint64_t free_inodes = 0;
  uint64_t index_bytes = 0;

  uint64_t used_inodes() const { return inodes - free_inodes; }
  // Of the kernel and of the daemon, for what has a name. Half of the pool is counted at most, which may be
  // less than there is where a former version of the daemon allowed more inodes.
  uint64_t inode_bytes() const {
    return std::min((used_inodes() - std::min(used_inodes(), kFreeInodes)) * kInodeBytes, size_bytes / 2);
  }
  uint64_t data_bytes() const { return size_bytes - free_bytes; }
  // What does not leave with data, and what counts for it.
  uint64_t overhead_bytes() const { return std::min(inode_bytes() + index_bytes, size_bytes / 2); }
  uint64_t used_bytes() const { return data_bytes() + overhead_bytes(); }
};

// What a kernel lacks of a pool's memory.
struct TmpfsLack {
  bool huge_pages = false;  // CONFIG_TRANSPARENT_HUGEPAGE, off with PREEMPT_RT and in some clouds' kernels
  bool noswap = false;      // Linux 6.4
};

// The call mounts a tmpfs for a pool of this size. It has huge=within_size: a 64 KiB file takes 64 KiB, a
// 32 MiB one takes 2 MiB pages (docs/facts.md "tmpfs with huge=within_size"); and noswap. A kernel gets it
// without what it lacks.
Result<TmpfsLack> mount_pool_memory(const std::string& path, uint64_t size_bytes);

class MemoryArena {
 public:
  struct Options {
    std::string path;  // the mount point, made if missing
    uint64_t size_bytes = 0;
    mode_t mode = 0;  // of the tree's root
    uid_t uid = 0;
    gid_t gid = 0;
  };

  // What the kernel lacks of mount_pool_memory() the log says.
  static Result<MemoryArena> create(const Options& options);

  // adopt() takes over the tmpfs that is mounted at `path` already; ENOENT when none is. If its tree was
  // removed, the tree is found in `nameless`, descriptors of inodes without a name; if it is not there, an
  // empty directory stands for it.
  static Result<MemoryArena> adopt(const std::string& path, std::span<const int> nameless = {});

  MemoryArena(MemoryArena&&) noexcept = default;
  MemoryArena& operator=(MemoryArena&&) = delete;
  ~MemoryArena();

  int tree_fd() const { return tree_.get(); }
  sys::Handle tree() const { return tree_handle_; }
  bool tree_is_removed() const { return removed_; }  // true if it was when it was adopted
  const std::string& path() const { return path_; }

  // ESTALE when the inode is gone.
  Result<UniqueFd> open(sys::Handle handle, int flags) const;

  // The path below the tree of a descriptor's name, without a leading slash; ENOENT when the inode has no
  // name any more; ENAMETOOLONG.
  Result<std::string> name_of(int fd) const;

  // Names that have no path. The object is shared and locks itself.
  DeepNames& deep_names() const { return *deep_names_; }

  // drop_pages() gives the file's memory back and leaves its size unchanged.
  Result<void> drop_pages(int fd) const;

  ArenaUsage usage() const;
  // The memory of the pool's index (tier/index/entry_index.h), which keeps the count.
  std::atomic<uint64_t>& index_bytes() { return *index_bytes_; }
  Result<void> resize(uint64_t size_bytes);  // EINVAL when more is in use
  Result<void> remove_tree();                // ENOTEMPTY when the tree holds anything

 private:
  MemoryArena() = default;
  Result<void> open_tree();
  Result<void> use_tree(UniqueFd tree);

  std::string path_;
  std::unique_ptr<DeepNames> deep_names_ = std::make_unique<DeepNames>();
  std::unique_ptr<std::atomic<uint64_t>> index_bytes_ = std::make_unique<std::atomic<uint64_t>>(0);
  bool removed_ = false;
  UniqueFd mount_;
  UniqueFd tree_;
  sys::Handle tree_handle_;
};

}  // namespace kvcachefs
