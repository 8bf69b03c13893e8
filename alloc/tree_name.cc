#include "alloc/tree_name.h"

#include <cerrno>

#include "base/fault_point.h"
#include "base/sys_beneath.h"

namespace kvcachefs {

Result<TreeName> find_name(const MemoryArena& arena, int fd) {
  const auto wanted = sys::stat_of(fd);
  if (!wanted) return fail(wanted.error().code);
  constexpr int kTries = 3;
  for (int tries = 0; tries < kTries; ++tries) {
    auto path = arena.name_of(fd);
    if (!path) return pass(path);
    fault_point("name found");
    const size_t slash = path->rfind('/');
    TreeName result;
    if (slash != std::string::npos) result.directory = path->substr(0, slash);
    result.name = slash == std::string::npos ? *path : path->substr(slash + 1);
    auto parent = sys::open_beneath(
        arena.tree_fd(), slash == std::string::npos ? "." : result.directory.c_str(), O_PATH | O_DIRECTORY);
    if (!parent) continue;
    const auto found = sys::stat_at(parent->get(), result.name.c_str());
    if (!found || found->st_ino != wanted->st_ino || found->st_dev != wanted->st_dev) continue;
    result.parent = std::move(*parent);
    return result;
  }
  return fail(ESTALE);
}

}  // namespace kvcachefs
