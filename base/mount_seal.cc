#include "base/mount_seal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>

#include <cerrno>
#include <string_view>

#include "base/mountinfo.h"
#include "base/sys.h"
#include "base/sys_disk.h"

namespace kvcachefs {
namespace {

Result<bool> is_empty(int directory) {
  auto again = sys::open_at(directory, ".", O_RDONLY | O_DIRECTORY);
  if (!again) return pass(again);
  const sys::DirectoryStream stream = sys::stream_of(std::move(*again));
  if (!stream) return fail(ENOMEM);
  for (;;) {
    Result<dirent*> entry = sys::next_entry(stream.get());
    if (!entry) return pass(entry);
    if (*entry == nullptr) return true;
    const std::string_view name = (*entry)->d_name;
    if (name != "." && name != "..") return false;
  }
}

Result<void> set_immutable(int directory, bool immutable) {
  int flags = 0;
  if (auto read = sys::control(directory, FS_IOC_GETFLAGS, &flags); !read) return pass(read);
  int wanted = immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
  if (wanted == flags) return {};
  if (auto set = sys::control(directory, FS_IOC_SETFLAGS, &wanted); !set) return pass(set);
  return {};
}

Result<bool> seal(int directory) {
  const auto empty = is_empty(directory);
  if (!empty || !*empty) return empty;
  auto before = sys::stat_of(directory);
  if (!before) return pass(before);
  const bool immutable = set_immutable(directory, true).has_value();
  if (!immutable)
    if (auto closed = sys::change_mode(directory, 0); !closed) return pass(closed);
  // What came in since the first look is not to be shut in.
  const auto still_empty = is_empty(directory);
  if (still_empty && *still_empty) return true;
  auto undone =
      immutable ? set_immutable(directory, false) : sys::change_mode(directory, before->st_mode & 07777);
  if (!undone) return pass(undone);
  return still_empty;
}

}  // namespace

Result<bool> seal_mount_point(const std::string& directory) {
  auto mounts = read_mounts();
  if (!mounts) return pass(mounts);
  if (find_mount(*mounts, directory) != nullptr) return true;
  const auto opened = sys::open_at(AT_FDCWD, directory.c_str(), O_RDONLY | O_DIRECTORY);
  const auto sealed = opened ? seal(opened->get()) : Result<bool>(std::unexpected(opened.error()));
  if (sealed || sealed.error().code == EROFS) return sealed.value_or(true);
  return fail(sealed.error().code, fmt::format("{} cannot be made to take no writes while nothing is mounted "
                                               "there: {}",
                                               directory, sys::error_text(sealed.error().code)));
}

}  // namespace kvcachefs
