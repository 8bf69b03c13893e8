#include "base/mountinfo.h"

#include <fmt/format.h>
#include <libmount/libmount.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <set>

#include "base/key_value.h"
#include "base/sys_disk.h"

namespace kvcachefs {
namespace {

bool has_option(std::string_view options, std::string_view wanted) {
  while (!options.empty())
    if (take_part(options, ',') == wanted) return true;
  return false;
}

MountPoint mount_of(libmnt_fs* line) {
  const dev_t device = ::mnt_fs_get_devno(line);
  MountPoint mount = {.device = fmt::format("{}:{}", major(device), minor(device)),
                      .root = ::mnt_fs_get_root(line),
                      .directory = ::mnt_fs_get_target(line),
                      .options = ::mnt_fs_get_options(line),
                      .type = ::mnt_fs_get_fstype(line),
                      .source = ::mnt_fs_get_source(line)};
  if (const char* const options = ::mnt_fs_get_fs_options(line); options != nullptr)
    mount.super_options = options;
  const char* const optional = ::mnt_fs_get_optional_fields(line);
  for (std::string_view fields = optional == nullptr ? "" : optional; !fields.empty();) {
    std::string_view group = take_part(fields, ' ');
    const std::string_view kind = take_part(group, ':');
    if (kind == "shared") mount.peer_group = group;
    if (kind == "master") mount.master_group = group;
  }
  return mount;
}

}  // namespace

Result<std::vector<MountPoint>> read_mounts(const std::string& file) {
  const std::unique_ptr<libmnt_table, decltype(&::mnt_unref_table)> table(::mnt_new_table(),
                                                                          ::mnt_unref_table);
  const std::unique_ptr<libmnt_iter, decltype(&::mnt_free_iter)> lines(::mnt_new_iter(MNT_ITER_FORWARD),
                                                                       ::mnt_free_iter);
  // This call reads the file alone: nothing of /run/mount is mixed in, and no mount point is touched.
  if (const int code = ::mnt_table_parse_file(table.get(), file.c_str()); code != 0)
    return fail(-code, fmt::format("{}: {}", file, sys::error_text(-code)));
  std::vector<MountPoint> mounts;
  for (libmnt_fs* line = nullptr; ::mnt_table_next_fs(table.get(), lines.get(), &line) == 0;)
    mounts.push_back(mount_of(line));
  return mounts;
}

const MountPoint* find_mount(const std::vector<MountPoint>& mounts, std::string_view directory) {
  const auto found = std::find_if(mounts.rbegin(), mounts.rend(),
                                  [&](const MountPoint& mount) { return mount.directory == directory; });
  return found == mounts.rend() ? nullptr : &*found;
}

std::vector<std::string> find_kvcachefs_roots(const std::vector<MountPoint>& mounts) {
  std::vector<std::string> roots;
  std::set<std::string> devices;
  for (const MountPoint& mount : mounts) {
    if (mount.type != kFileSystemType || mount.root != "/") continue;
    if (!has_option(mount.super_options, "user_id=0")) continue;
    // Another mount hides this one: a path does not lead to it.
    if (find_mount(mounts, mount.directory) != &mount) continue;
    if (devices.insert(mount.device).second) roots.push_back(mount.directory);
  }
  return roots;
}

bool is_read_only_everywhere(const MountPoint& mount) {
  return has_option(mount.super_options, "ro");
}

bool is_daemon_gone(int code) {
  return code == ENOTCONN || code == ECONNABORTED || code == ECANCELED;
}

bool is_dead_mount(const std::string& directory) {
  std::error_code error;
  (void)std::filesystem::space(directory, error);
  return is_daemon_gone(error.value());
}

Result<std::filesystem::path> resolve_mount_point(std::string_view text) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(text, error);
  std::filesystem::path resolved = std::filesystem::canonical(path, error);
  if (!error) return resolved;
  if (is_daemon_gone(error.value())) {
    const std::filesystem::path plain = path.has_filename() ? path : path.parent_path();
    resolved = std::filesystem::canonical(plain.parent_path(), error);
    if (!error) return resolved / plain.filename();
  }
  return fail(error.value(), fmt::format("{}: {}", text, error.message()));
}

Result<void> check_mount_place(const std::filesystem::path& directory) {
  const std::string path = directory.native() + "/";
  for (const std::string_view place : {"/proc/", "/sys/", "/dev/"})
    if (path.starts_with(place))
      return fail(EPERM, fmt::format("{}: kvcachefs is not mounted in /proc, /sys or /dev: containers would "
                                     "not start any more",
                                     directory.native()));
  if (directory == "/")
    return fail(EPERM,
                "/: kvcachefs is not mounted over the root directory: containers would not start any "
                "more, and nothing could unmount it");
  return {};
}

}  // namespace kvcachefs
