// The mount table of /proc/self/mountinfo (proc(5)), for the kvcachefs tool and the mount helper. Any thread.
// Never fails: a malformed line is left out.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace kvcachefs {

inline constexpr std::string_view kFileSystemType = "fuse.kvcachefs";

struct MountPoint {
  std::string device;     // `MAJOR:MINOR`: the same for all mounts of one file system
  std::string root;       // which of its directories is mounted: `/`, or `/POOL` for a pool's bind mount
  std::string directory;  // the mount point
  std::string options;
  std::string type;
  std::string source;
  // The mount's propagation groups (mount_namespaces(7)): the peer group, with which it shares mounts and
  // unmounts, and the master group, from which it receives them. Empty: none.
  std::string peer_group = {};
  std::string master_group = {};
};

// The mounts in the order of the table: of two mounts on one directory the later is on top.
std::vector<MountPoint> parse_mountinfo(std::string_view text);

// unescape_octal() replaces `\040` and other three-digit octal escapes by the bytes they stand for.
std::string unescape_octal(std::string_view text);

// The topmost mount on exactly this directory; nullptr if no mount is there.
const MountPoint* find_mount(const std::vector<MountPoint>& mounts, std::string_view directory);

// The mount points of whole kvcachefs file systems: for each file system the first one that a path leads to.
std::vector<std::string> find_kvcachefs_roots(const std::vector<MountPoint>& mounts);

}  // namespace kvcachefs
