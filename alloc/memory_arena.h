// A pool's memory: one tmpfs whose `tree` directory is the pool's name tree. Any thread; the object is
// immutable but for resize and allow_inodes, which are one thread's at a time. The mount's size= is the last
// wall of the pool's promise. Failure: errno and a message that names the path. The destructor unmounts
// (lazily: files that somebody still has open keep their bytes until they close).
#pragma once

#include <cstdint>
#include <string>

#include "base/result.h"
#include "base/sys.h"
#include "base/unique_fd.h"

namespace kvcachefs {

struct ArenaUsage {
  uint64_t size_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t inodes = 0;
  uint64_t free_inodes = 0;

  uint64_t used_bytes() const { return size_bytes - free_bytes; }
};

class MemoryArena {
 public:
  struct Options {
    std::string path;  // the mount point, made if missing
    uint64_t size_bytes = 0;
    mode_t mode = 0;  // of the tree's root
    uid_t uid = 0;
    gid_t gid = 0;
  };

  // huge=within_size: a 64 KiB file takes 64 KiB, a 32 MiB one takes 2 MiB pages (spikes/README.md). noswap
  // needs Linux 6.4; an older kernel gets the mount without it, said by swappable().
  static Result<MemoryArena> create(const Options& options);

  // The one that is mounted there already. ENOENT when none is.
  static Result<MemoryArena> adopt(const std::string& path);

  MemoryArena(MemoryArena&&) noexcept = default;
  MemoryArena& operator=(MemoryArena&&) = delete;
  ~MemoryArena();

  int tree_fd() const { return tree_.get(); }
  sys::Handle tree() const { return tree_handle_; }
  bool swappable() const { return swappable_; }
  const std::string& path() const { return path_; }

  // ESTALE when the inode is gone.
  Result<UniqueFd> open(sys::Handle handle, int flags) const;

  // The path below the tree of a descriptor's name, without a leading slash; ENOENT when it has none any
  // more.
  Result<std::string> name_of(int fd) const;

  // Gives the file's memory back and leaves its size and its times as they are.
  Result<void> drop_pages(int fd) const;

  ArenaUsage usage() const;
  Result<void> resize(uint64_t size_bytes);  // EINVAL when more than that is in use
  // Room for so many inodes that take no memory of the pool's, beside those that its size allows.
  Result<void> allow_inodes(uint64_t count);
  Result<void> remove_tree();  // ENOTEMPTY when it holds anything

 private:
  MemoryArena() = default;
  Result<void> open_tree();

  std::string path_;
  bool swappable_ = false;
  uint64_t extra_inodes_ = 0;
  UniqueFd mount_;
  UniqueFd tree_;
  sys::Handle tree_handle_;
};

}  // namespace kvcachefs
