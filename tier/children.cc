#include "tier/children.h"

#include <dirent.h>

#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/fault_point.h"
#include "base/log_limit.h"
#include "base/progress.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr unsigned kMostNamed = 10;  // directories named in the log, a minute

Result<void> read_children(const sys::DirectoryStream& directory,
                           const std::function<void(const Child& child)>& visit) {
  Child child;
  for (;;) {
    auto next = sys::next_entry(directory.get());
    if (!next) return pass(next);
    const dirent* const record = *next;
    if (record == nullptr) return {};
    const std::string_view name(record->d_name);
    if (name == "." || name == "..") continue;
    count_step();
    fault_point("name read");
    child.ino = record->d_ino;
    child.is_regular = record->d_type == DT_REG;
    child.is_directory = record->d_type == DT_DIR;
    child.name = name;
    visit(child);
  }
}

}  // namespace

Result<void> for_each_child(UniqueFd directory, const std::function<void(const Child& child)>& visit) {
  const sys::DirectoryStream stream = sys::stream_of(std::move(directory));
  if (!stream) return fail(ENOMEM);  // its buffer is the only thing that there may be no memory for
  return read_children(stream, visit);
}

Result<void> walk_tree(
    const MemoryArena& arena,
    const std::function<void(int directory, uint64_t directory_ino, const Child& child)>& visit, Walk walk) {
  std::vector<sys::Handle> pending{arena.tree()};
  Result<void> whole;
  while (!pending.empty()) {
    const sys::Handle next = pending.back();
    pending.pop_back();
    auto directory = arena.open(next, O_RDONLY | O_DIRECTORY | O_NOFOLLOW);
    if (!directory) {
      const int code = directory.error().code;  // a link or a pipe is no directory
      static LogLimit limit(kMostNamed);
      if (code != ENOTDIR && code != ELOOP) {
        limit.error("directory {} cannot be looked through: {}", next.ino, std::strerror(code));
        whole = pass(directory);
      }
      continue;
    }
    // A directory's links are its name, its `.` and the `..` of each directory in it.
    if (walk == Walk::kNotFiles)
      if (const auto attributes = sys::stat_of(directory->get()); attributes && attributes->st_nlink <= 2)
        continue;
    const sys::DirectoryStream stream = sys::stream_of(std::move(*directory));
    KVCACHEFS_CHECK(stream != nullptr);
    const int fd = ::dirfd(stream.get());
    auto read = read_children(stream, [&](const Child& child) {
      if (walk == Walk::kNotFiles && child.is_regular) return;
      visit(fd, next.ino, child);
      if (child.is_regular) return;
      if (const auto handle = sys::handle_at(fd, child.name.c_str()))
        pending.push_back(*handle);
      else
        whole = fail(handle.error().code);
    });
    if (!read) whole = std::move(read);
  }
  return whole;
}

}  // namespace kvcachefs
