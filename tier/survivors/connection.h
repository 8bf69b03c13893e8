// The connection to the kernel, as a successor of the serving process takes it over. Any thread; written by
// one. Without a supervisor there is none to take over.
#pragma once

#include <array>
#include <atomic>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"

namespace kvcachefs {

class Connection {
 public:
  static constexpr size_t kMostInitBytes = 4096;

  struct Shared {
    std::atomic<int32_t> device_fd;          // -1: none
    std::array<char, PATH_MAX> mount_point;  // ends with a zero
    uint64_t init_bytes;
    std::array<std::byte, kMostInitBytes> init;
  };

  explicit Connection(Shared* shared) : shared_(shared) {}  // none: without a supervisor

  // The mount point, resolved at the start: to resolve it again would wait for the process that serves it.
  // ENAMETOOLONG.
  Result<void> set_mount_point(std::string_view path);
  std::string mount_point() const { return shared_->mount_point.data(); }
  // A successor can take over from here on: the device is open in the shared table of descriptors, and `init`
  // is the kernel's INIT request.
  void connected(int device_fd, std::span<const std::byte> init);
  // Another connection is mounted in place of the one that has ended. Its INIT is still to come: has_init()
  // is false until connected().
  void replaced(int device_fd);
  bool has_init() const { return shared_ != nullptr && shared_->init_bytes > 0; }
  std::optional<int> device_fd() const;  // none: no connection to take over
  void disconnected();                   // it has ended for good: no process is to follow
  void moved(int device_fd) { shared_->device_fd = device_fd; }
  std::span<const std::byte> init() const { return std::span(shared_->init).first(shared_->init_bytes); }

 private:
  Shared* const shared_;
};

}  // namespace kvcachefs
