#include "alloc/tree_name.h"

#include <cerrno>
#include <optional>
#include <utility>

#include "base/fault_point.h"
#include "base/sys_beneath.h"

namespace kvcachefs {
namespace {

constexpr unsigned kMostSiblings = 1024;  // names of a directory that are looked through at once: 0.2 ms

bool is_named(int parent, const std::string& name, const struct stat& wanted) {
  const auto found = sys::stat_at(parent, name.c_str());
  return found && found->st_ino == wanted.st_ino && found->st_dev == wanted.st_dev;
}

// A directory knows its parent, and among few names there its own is found at once.
std::optional<TreeName> name_in_parent(int directory, const struct stat& wanted) {
  auto parent = sys::open_parent(directory, O_RDONLY | O_NOATIME);
  auto own = parent ? sys::duplicate(parent->get()) : pass(parent);
  const auto stream = own ? sys::stream_of(std::move(*own)) : sys::DirectoryStream();
  for (unsigned siblings = 0; stream && siblings < kMostSiblings; ++siblings) {
    const auto next = sys::next_entry(stream.get());
    if (!next || *next == nullptr) break;
    if ((*next)->d_ino != wanted.st_ino || !is_named(parent->get(), (*next)->d_name, wanted)) continue;
    return TreeName{.directory = {}, .is_deep = true, .name = (*next)->d_name, .parent = std::move(*parent)};
  }
  return std::nullopt;
}

Result<TreeName> find_deep_name(const MemoryArena& arena, int fd, const struct stat& wanted) {
  if (wanted.st_nlink == 0) return fail(ENOENT);
  if (S_ISDIR(wanted.st_mode))
    if (auto found = name_in_parent(fd, wanted)) return std::move(*found);
  while (const auto place = arena.deep_names().find(wanted.st_ino)) {
    auto parent = arena.open(place->directory, O_PATH | O_DIRECTORY | O_NOFOLLOW);
    if (parent && is_named(parent->get(), place->name, wanted))
      return TreeName{.directory = {}, .is_deep = true, .name = place->name, .parent = std::move(*parent)};
    arena.deep_names().drop(wanted.st_ino, *place);
  }
  return fail(ENAMETOOLONG);
}

}  // namespace

Result<TreeName> find_name(const MemoryArena& arena, int fd) {
  const auto wanted = sys::stat_of(fd);
  if (!wanted) return fail(wanted.error().code);
  constexpr int kTries = 3;
  for (int tries = 0; tries < kTries; ++tries) {
    auto path = arena.name_of(fd);
    if (!path && path.error().code == ENAMETOOLONG) return find_deep_name(arena, fd, *wanted);
    if (!path) return pass(path);
    fault_point("name found");
    const size_t slash = path->rfind('/');
    TreeName result;
    if (slash != std::string::npos) result.directory = path->substr(0, slash);
    result.name = slash == std::string::npos ? *path : path->substr(slash + 1);
    auto parent = sys::open_beneath(
        arena.tree_fd(), slash == std::string::npos ? "." : result.directory.c_str(), O_PATH | O_DIRECTORY);
    if (!parent || !is_named(parent->get(), result.name, *wanted)) continue;
    result.parent = std::move(*parent);
    return result;
  }
  return fail(ESTALE);
}

}  // namespace kvcachefs
