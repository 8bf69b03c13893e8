// A name of an inode in a pool's tree, found by a descriptor and proven, because users rename and exchange
// directories at any time. Any thread. Failure: ENOENT when the inode has no name any more; ENAMETOOLONG when
// its path is longer than PATH_MAX and its name is not known yet: from then on it is sought, and a later call
// finds it (alloc/deep_names.h); ESTALE when the path was renamed during each of three tries.
#pragma once

#include <string>

#include "alloc/memory_arena.h"

namespace kvcachefs {

struct TreeName {
  std::string directory;  // path below the tree; empty: the tree's root, or is_deep
  bool is_deep = false;   // the path is longer than PATH_MAX, and the name was found without it
  std::string name;
  UniqueFd parent;  // O_PATH; the name was proven to be the inode's in this directory
};

Result<TreeName> find_name(const MemoryArena& arena, int fd);

}  // namespace kvcachefs
