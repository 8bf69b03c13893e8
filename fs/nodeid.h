// The meaning of the 64 bits of a FUSE nodeid. st_ino is the same number. Any thread; never fails.
//
//     pool number << 48 | tmpfs inode number     an inode of a pool; tmpfs never reuses a number (inode64)
//     1                                          the mount's root
//     2, 2 + number                              .kvcachefs, its files (fs/control/control_file.h)
//     0x1002                                     .kvcachefs/pools
//     0x8000 | pool number << 48 | 0, number     the pool's .pool directory, its files
//     the same | 1 << 32                         .kvcachefs/pools/NAME, its files
#pragma once

#include <cstdint>

namespace kvcachefs {

struct NodeId {
  static constexpr uint64_t kRoot = 1;
  static constexpr uint64_t kMountControl = 2;
  static constexpr uint64_t kPoolsDirectory = 0x1002;
  static constexpr int kPoolShift = 48;
  static constexpr uint16_t kControlBit = 0x8000;
  static constexpr uint64_t kAdministratorsBit = uint64_t{1} << 32;

  uint64_t value = 0;

  uint16_t pool_number() const { return static_cast<uint16_t>(value >> kPoolShift) & 0x7fff; }
  bool is_control() const { return (value >> kPoolShift & kControlBit) != 0 || is_mount_control(); }
  bool is_mount_control() const { return value >= kMountControl && value >> kPoolShift == 0; }
  bool is_pools_directory() const { return value == kPoolsDirectory; }
  // True for a directory or file of a pool that only the host's administrator reaches.
  bool is_administrators() const {
    return (value >> kPoolShift & kControlBit) != 0 && (value & kAdministratorsBit) != 0;
  }
  bool is_root() const { return value == kRoot; }
  bool is_inode() const { return pool_number() != 0 && !is_control(); }
  uint64_t ino() const { return value & ((uint64_t{1} << kPoolShift) - 1); }

  // 0 for the directory itself, and the number of the file for its files.
  uint64_t control_number() const {
    return is_mount_control() ? value - kMountControl : ino() & ~kAdministratorsBit;
  }

  static NodeId of_inode(uint16_t pool, uint64_t ino) {
    return {static_cast<uint64_t>(pool) << kPoolShift | ino};
  }
  static NodeId of_control(uint16_t pool, uint64_t number) {
    if (pool == 0) return {kMountControl + number};
    return {static_cast<uint64_t>(pool | kControlBit) << kPoolShift | number};
  }
  static NodeId of_administrators(uint16_t pool, uint64_t number) {
    return {of_control(pool, number).value | kAdministratorsBit};
  }
};

}  // namespace kvcachefs
