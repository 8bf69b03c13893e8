#include "daemon/log_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>

#include "base/sys.h"
#include "daemon/runtime_dir.h"

namespace kvcachefs {

constexpr const char* kEarlier = ".1";

std::string log_path(const std::string& runtime_dir, const std::string& mountpoint) {
  return RuntimeDir::directory_of(runtime_dir, mountpoint) + ".log";
}

Result<void> check_log_path(const std::string& path) {
  const std::string earlier = path + kEarlier;
  if (earlier.size() - (earlier.rfind('/') + 1) <= NAME_MAX) return {};
  return fail(ENAMETOOLONG,
              earlier + ": a longer name than a file may have: a daemon in the background has no log");
}

void log_to(const std::string& path) {
  if (auto file = sys::open_at(AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW, 0640))
    (void)dup2(file->get(), STDERR_FILENO);
}

void keep_log_bounded(const std::string& path, uint64_t most_bytes) {
  const auto open = sys::stat_of(STDERR_FILENO);
  if (!open || static_cast<uint64_t>(open->st_size) < most_bytes) return;
  const auto named = sys::stat_at(AT_FDCWD, path.c_str());
  if (!named || named->st_ino != open->st_ino || named->st_dev != open->st_dev) return;
  if (std::rename(path.c_str(), (path + kEarlier).c_str()) == 0) log_to(path);
}

}  // namespace kvcachefs
