#include "daemon/mount_point.h"

#include <fmt/format.h>

#include <cerrno>

namespace kvcachefs {

bool is_daemon_gone(int code) {
  return code == ENOTCONN || code == ECONNABORTED || code == ECANCELED;
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

}  // namespace kvcachefs
