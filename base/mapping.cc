#include "base/mapping.h"

#include <sys/mman.h>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPageBytes = 4096;

size_t whole_pages(uint64_t size_bytes) {
  return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

Result<Mapping> Mapping::of_file(int fd, uint64_t size_bytes, Access access) {
  const size_t length = whole_pages(size_bytes);
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* mapped = ::mmap(nullptr, length, protection, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED) return std::unexpected(sys::last_error("mmap of an entry"));
  return Mapping({static_cast<std::byte*>(mapped), length});
}

Result<Mapping> Mapping::of_memory(uint64_t size_bytes) {
  const size_t length = whole_pages(size_bytes);
  void* mapped = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return std::unexpected(sys::last_error("mmap of a buffer"));
  return Mapping({static_cast<std::byte*>(mapped), length});
}

Mapping::~Mapping() {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
}

}  // namespace kvcachefs
