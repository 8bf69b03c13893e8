#include "tests/support/pool_pressure.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include <array>

#include "tests/support/files.h"

namespace kvcachefs::test {

std::vector<std::string> fill(const std::string& directory, const std::string& name, int count,
                              size_t bytes) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) {
    names.push_back(directory + "/" + name + "-" + std::to_string(i));
    EXPECT_EQ(error_name(store(names.back(), pattern(i, bytes))), "ok") << names.back();
  }
  return names;
}

std::vector<int> survivors(const std::vector<std::string>& names) {
  std::vector<int> left;
  for (size_t i = 0; i < names.size(); ++i) {
    if (exists(names[i])) left.push_back(static_cast<int>(i));
  }
  return left;
}

std::vector<int> in_memory(const std::vector<std::string>& names) {
  std::vector<int> there;
  for (size_t i = 0; i < names.size(); ++i) {
    std::array<char, 16> tier{};
    // An entry that is gone has no tier, and an entry may go at any moment.
    const ssize_t size = ::getxattr(names[i].c_str(), "user.kvcachefs.tier", tier.data(), tier.size());
    if (size > 0 && std::string_view(tier.data(), static_cast<size_t>(size)) != "cold")
      there.push_back(static_cast<int>(i));
  }
  return there;
}

int check_whole(const std::vector<std::string>& names) {
  int whole = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    std::string content;
    const int error = load(names[i], &content);
    if (error == ENOENT) continue;
    EXPECT_EQ(error_name(error), "ok") << names[i];
    EXPECT_FALSE(content.empty()) << names[i];
    EXPECT_EQ(difference(i, content), "") << names[i];
    ++whole;
  }
  return whole;
}

uint64_t tmpfs_used_bytes(const Mount& mount) {
  uint64_t used = 0;
  for (const MountPoint& memory : mounts_below(mount.runtime_dir())) {
    struct statvfs status {};
    if (memory.type != "tmpfs" || ::statvfs(memory.directory.c_str(), &status) != 0) continue;
    used += (status.f_blocks - status.f_bfree) * status.f_frsize;
  }
  return used;
}

bool all_closed(const Mount& mount, std::string_view pool) {
  return eventually([&] { return mount.stat_value("open_entries", pool) == 0; });
}

bool settled(const Mount& mount, std::string_view pool) {
  return all_closed(mount, pool) &&
         (!every_pool_spills() || eventually([&] { return mount.stat_value("dirty_entries", pool) == 0; }));
}

void order(const Mount& mount, std::string_view what) {
  EXPECT_EQ(error_name(write_once(mount.control("evict"), what)), "ok") << what;
}

}  // namespace kvcachefs::test
