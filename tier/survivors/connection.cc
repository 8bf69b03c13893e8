#include "tier/survivors/connection.h"

#include <algorithm>

#include "base/check.h"

namespace kvcachefs {

Result<void> Connection::set_mount_point(std::string_view path) {
  if (path.size() >= PATH_MAX) return fail(ENAMETOOLONG, "the mount point's path is too long");
  shared_->mount_point[path.copy(shared_->mount_point.data(), path.size())] = '\0';
  return {};
}

void Connection::connected(int device_fd, std::span<const std::byte> init) {
  if (shared_ == nullptr || has_init()) return;
  KVCACHEFS_CHECK(init.size() <= kMostInitBytes);
  std::ranges::copy(init, shared_->init.begin());
  shared_->init_bytes = init.size();
  shared_->device_fd = device_fd;
}

void Connection::replaced(int device_fd) {
  shared_->init_bytes = 0;
  shared_->device_fd = device_fd;
}

void Connection::disconnected() {
  if (shared_ != nullptr) shared_->device_fd = -1;
}

std::optional<int> Connection::device_fd() const {
  if (shared_ == nullptr || shared_->device_fd < 0) return std::nullopt;
  return shared_->device_fd;
}

}  // namespace kvcachefs
