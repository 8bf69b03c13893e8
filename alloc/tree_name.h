// A name of an inode in a pool's tree, found by a descriptor and proven: users rename and exchange
// directories at any time. Any thread. Failure: ENOENT when it has no name any more; ENAMETOOLONG when its
// path has more than PATH_MAX; ESTALE when it was renamed each time.
#pragma once

#include <cstdint>
#include <string>

#include "alloc/memory_arena.h"

namespace kvcachefs {

struct TreeName {
  std::string directory;  // path below the tree, empty for its root
  std::string name;
  UniqueFd parent;  // O_PATH; the name was that inode's in it
};

Result<TreeName> find_name(const MemoryArena& arena, int fd);

}  // namespace kvcachefs
