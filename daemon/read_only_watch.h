// A ReadOnlyWatch notes in the log that the mounted file system takes no writes any more, and when it does
// again: `mount -o remount,ro DIR` of one pool's directory makes all pools read-only, and the kernel tells
// the daemon nothing of that. One thread, which calls look() at any pace. Never fails: a mount table that
// cannot be read changes nothing.
#pragma once

#include <cstdint>
#include <string>

namespace kvcachefs {

class ReadOnlyWatch {
 public:
  explicit ReadOnlyWatch(std::string mountpoint) : mountpoint_(std::move(mountpoint)) {}
  void look();

 private:
  std::string mountpoint_;
  uint64_t next_ns_ = 0;
  bool is_read_only_ = false;
};

}  // namespace kvcachefs
