// Plain values: what a pool is told of a file that has just been made, and what it answers for a file that is
// looked up or opened. Any thread.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <string_view>

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
};

}  // namespace kvcachefs
