// The inodes of a pool as the kernel knows them: how often it looked each up, and what users see of one. Any
// thread. Functions on inodes fail with ESTALE when the inode is gone: that is how a late caller sees that it
// was discarded.
#pragma once

#include <sys/stat.h>

#include <array>
#include <cstdint>
#include <ctime>

#include "tier/pool/opened.h"
#include "tier/pool/pool_disk.h"
#include "tier/pool/reservations.h"

namespace kvcachefs {

// A directory to work in: borrowed for the pool's root, where most clients' names are, otherwise owned.
struct Directory {
  int fd = -1;
  UniqueFd owned;
};

class Inodes : DiskPart {
 public:
  Inodes(const DiskPart& part, Reservations& reservations) : DiskPart(part), reservations_(reservations) {}

  Result<Directory> directory(uint64_t ino);
  Result<UniqueFd> open_inode(uint64_t ino, int flags);
  Result<struct stat> attributes(uint64_t ino);
  Result<void> set_times(uint64_t ino, const std::array<timespec, 2>& times);  // as utimensat(2) takes them
  // Does nothing while a client has the file open for writing: a passthrough write that waits for the pages
  // of its source may hold the inode's lock for ever, and the caller would wait for the lock.
  void change_mode_unless_written(uint64_t ino, mode_t mode);
  // Counts that the kernel learns of an inode; `attributes` become what its users see.
  Result<void> looked_up(sys::Handle handle, struct stat& attributes);
  // look_up() does so for the inode that has the name; ESTALE if another inode has it by now. `sought`: the
  // file can be opened until the kernel forgets it, also if it loses its name before.
  Result<LookedUp> look_up(sys::Handle handle, int directory, const char* name, bool sought = false);
  void forget(uint64_t ino, uint64_t lookups);
  uint32_t generation_of(uint64_t ino);  // 0 for an inode that is not known
  void looked_for_nothing(uint64_t directory_ino);
  // Whether a mapping or an open file may write it: then the kernel must not remember its times and size.
  bool may_be_written(uint64_t ino);
  // True if a process may write the entry's file without the daemon, through a descriptor or a mapping.
  bool may_be_written_past(const Entry& entry) const;
  bool root_is_known();  // to the kernel

  // Turns an inode's attributes as the tmpfs has them into those that its users see.
  void show(const Entry& entry, struct stat& attributes) const;
  // Its users have changed it otherwise than by writing: its kept ctime does not hold any more.
  void touched(Entry& entry);

 private:
  Result<void> count_lookup(EntryTable::Shard& shard, sys::Handle handle, struct stat& attributes)
      REQUIRES(shard.mutex);

  Reservations& reservations_;
};

}  // namespace kvcachefs
