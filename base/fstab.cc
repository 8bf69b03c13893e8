#include "base/fstab.h"

#include <fmt/format.h>
#include <libmount/libmount.h>

#include <algorithm>
#include <cerrno>
#include <memory>

namespace kvcachefs {
namespace {

bool lies_in(const std::filesystem::path& path, const std::filesystem::path& directory) {
  return std::mismatch(directory.begin(), directory.end(), path.begin(), path.end()).first == directory.end();
}

// The deepest of fstab's mount points that the path lies in, or nothing.
std::filesystem::path mount_point_above(const std::filesystem::path& path, const std::string& fstab) {
  const std::unique_ptr<libmnt_table, decltype(&mnt_unref_table)> table(mnt_new_table(), mnt_unref_table);
  const std::unique_ptr<libmnt_iter, decltype(&mnt_free_iter)> each(mnt_new_iter(MNT_ITER_FORWARD),
                                                                    mnt_free_iter);
  if (!table || !each || mnt_table_parse_fstab(table.get(), fstab.empty() ? nullptr : fstab.c_str()) != 0)
    return {};
  std::filesystem::path deepest;
  libmnt_fs* entry = nullptr;
  while (mnt_table_next_fs(table.get(), each.get(), &entry) == 0) {
    const char* const target = mnt_fs_get_target(entry);
    if (target == nullptr || *target != '/') continue;  // a swap has `none`
    std::error_code error;
    std::filesystem::path directory = std::filesystem::weakly_canonical(target, error);
    if (error) directory = target;
    if (!directory.has_filename()) directory = directory.parent_path();
    if (directory != directory.root_path() && lies_in(path, directory) &&
        directory.native().size() > deepest.native().size())
      deepest = std::move(directory);
  }
  return deepest;
}

}  // namespace

Result<void> check_is_mounted(const std::filesystem::path& path, const std::string& fstab,
                              const std::vector<MountPoint>& mounts) {
  if (path.empty()) return {};
  std::error_code error;
  std::filesystem::path resolved = std::filesystem::weakly_canonical(path, error);
  if (error) resolved = path.lexically_normal();
  const std::filesystem::path wanted = mount_point_above(resolved, fstab);
  if (wanted.empty() || find_mount(mounts, wanted.native()) != nullptr) return {};
  return fail(ENODEV, fmt::format("{}: the file system that /etc/fstab has for {} is not mounted",
                                  path.native(), wanted.native()));
}

Result<void> check_is_mounted(const std::filesystem::path& path) {
  const auto mounts = read_mounts();
  return mounts ? check_is_mounted(path, "", *mounts) : Result<void>();
}

Result<void> check_disks_are_mounted(std::string_view pool, const std::filesystem::path& spill,
                                     const std::filesystem::path& catalog) {
  for (const auto& path : {spill, catalog})
    if (auto mounted = check_is_mounted(path); !mounted)
      return fail(mounted.error().code, fmt::format("pool {}: {}", pool, mounted.error().message));
  return {};
}

}  // namespace kvcachefs
