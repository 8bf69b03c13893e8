// A mapping of a file's pages, and memory that a disk may write to. Move-only; one owner, any thread.
// Failure: errno of mmap(2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"

namespace kvcachefs {

// A file up to this size is copied through a buffer: to map so little and to unmap it, with the other
// processors' TLBs, costs more than to copy it: 30 us against 10 for 64 KiB.
inline constexpr uint64_t kBufferedBytesMax = 256 << 10;

// Shared, from the start of the file; whole pages, so that the last one's rest can go to the disk too.
class Mapping {
 public:
  enum class Access { kRead, kWrite };
  static Result<Mapping> of_file(int fd, uint64_t size_bytes, Access access);
  static Result<Mapping> of_memory(uint64_t size_bytes);  // private to this process

  Mapping() = default;
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  explicit operator bool() const { return !bytes_.empty(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  std::span<std::byte> bytes_;
};

}  // namespace kvcachefs
