// Plain values: what a pool is told of a file that has just been made or is opened, and what it answers for a
// file that is looked up, opened or cut. Any thread.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string_view>

#include "tier/entries/entry.h"

namespace kvcachefs {

// A regular file that the caller has just made, open or (mknod) not.
struct Created {
  int fd;
  uint64_t ino;
  uint32_t generation;
  bool open;
  bool writer;
  bool named;  // false: O_TMPFILE
  std::string_view name;
  int node;
};

struct LookedUp {
  struct stat attributes;
  bool being_written = false;
};

struct Opened {
  int32_t backing = -1;
  bool from_disk = false;       // read() serves it: from the disk as long as the entry is not in memory
  bool through_daemon = false;  // its reads and writes come to the daemon: it was promised no memory
  Entry::Tier tier = Entry::Tier::kDirty;
  uint64_t bytes = 0;  // that the entry takes in memory, or did before its eviction
};

// How a client has an entry open.
struct OpenMode {
  bool writer = false;
  bool from_disk = false;          // see Opened; at an open, a reader accepts it
  std::optional<uid_t> user = {};  // at a close: who opened it, as held_by() was told
};

// Whether an entry can be opened or cut.
enum class Presence {
  kHere,
  kCold,  // it is to be promoted first; a reader that got no memory for that opens it from_disk
  kGone,  // the inode is gone, or the pool has not read its catalog yet
  kAway,  // its content is on a disk that has been waited for long enough (tier/disk/away_disk.h)
};

struct OpenAnswer {
  Presence presence = Presence::kHere;
  Opened opened = {};  // only of what is here
};

}  // namespace kvcachefs
