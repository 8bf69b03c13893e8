// A mapping of a file's pages, or memory into which a disk may write. Move-only; one owner, any thread.
// Failure: errno of mmap(2).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "base/result.h"

namespace kvcachefs {

// A file up to this size is copied through a buffer. Mapping and unmapping it, which flushes the other
// processors' TLBs, costs more than the copy: 30 us against 10 us for 64 KiB.
inline constexpr uint64_t kBufferedBytesMax = 256 << 10;

// A mapping has whole pages, so that the rest of the last page can go to the disk too.
class Mapping {
 public:
  enum class Access { kRead, kWrite };
  static Result<Mapping> of_file(int fd, uint64_t size_bytes, Access access);
  // of_range() maps only the pages of this range, for reading; `offset_bytes` begins a page.
  static Result<Mapping> of_range(int fd, uint64_t offset_bytes, uint64_t size_bytes);
  static Result<Mapping> of_memory(uint64_t size_bytes);  // private to this process

  Mapping() = default;
  Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}
  Mapping& operator=(Mapping&& other) noexcept {
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Mapping();

  // is_resident() is true if all pages that hold some of these bytes are in memory. Touching another page
  // would take memory for a hole, or wait. The call looks at these pages only, where SEEK_HOLE may look at
  // all of a large file.
  bool is_resident(size_t offset_bytes, size_t size_bytes) const;
  // populate() puts the pages of these bytes into this process's page tables (madvise(2), MADV_POPULATE_READ,
  // Linux 5.14), so that the kernel need not fetch them when it copies from them. False: the kernel cannot do
  // so.
  bool populate(size_t offset_bytes, size_t size_bytes) const;
  explicit operator bool() const { return !bytes_.empty(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  explicit Mapping(std::span<std::byte> bytes) : bytes_(bytes) {}
  static Result<Mapping> map(int fd, uint64_t offset_bytes, uint64_t size_bytes, int protection, int flags);

  std::span<std::byte> bytes_;
};

}  // namespace kvcachefs
