// The mount table of /proc/self/mountinfo (proc(5)), for the kvcachefs tool and the mount helper. Any thread.
// A line that is not understood is left out; nothing fails.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvcachefs {

inline constexpr std::string_view kFileSystemType = "fuse.kvcachefs";

struct MountPoint {
  std::string device;     // `MAJOR:MINOR`: the same for all mounts of one file system
  std::string root;       // what of the file system is mounted: `/`, or `/POOL` in a pool's bind mount
  std::string directory;  // where
  std::string options;
  std::string type;
  std::string source;
};

// In the order of the table: of two mounts on one directory the later is on top.
std::vector<MountPoint> parse_mountinfo(std::string_view text);

// `\040` and its like, three octal digits, are the bytes they stand for.
std::string unescape_octal(std::string_view text);

// The mount that a path of exactly this directory leads to; nullptr if nothing is mounted there.
const MountPoint* find_mount(const std::vector<MountPoint>& mounts, std::string_view directory);

// Where whole kvcachefs file systems are mounted, each file system once, the first place first.
std::vector<std::string> find_kvcachefs_roots(const std::vector<MountPoint>& mounts);

}  // namespace kvcachefs
