#include "base/mapping.h"

#include <sys/mman.h>

#include <algorithm>
#include <vector>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kPageBytes = 4096;

size_t whole_pages(uint64_t size_bytes) {
  return (size_bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

}  // namespace

Result<Mapping> Mapping::map(int fd, uint64_t offset_bytes, uint64_t size_bytes, int protection, int flags) {
  const size_t length = whole_pages(size_bytes);
  void* mapped = ::mmap(nullptr, length, protection, flags, fd, static_cast<off_t>(offset_bytes));
  if (mapped == MAP_FAILED)
    return std::unexpected(sys::last_error(fd < 0 ? "mmap of a buffer" : "mmap of an entry"));
  return Mapping({static_cast<std::byte*>(mapped), length});
}

Result<Mapping> Mapping::of_file(int fd, uint64_t size_bytes, Access access) {
  return map(fd, 0, size_bytes, access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE, MAP_SHARED);
}

Result<Mapping> Mapping::of_range(int fd, uint64_t offset_bytes, uint64_t size_bytes) {
  return map(fd, offset_bytes, size_bytes, PROT_READ, MAP_SHARED);
}

Result<Mapping> Mapping::of_memory(uint64_t size_bytes) {
  return map(-1, 0, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS);
}

bool Mapping::is_resident(size_t offset_bytes, size_t size_bytes) const {
  const size_t first = offset_bytes / kPageBytes;
  const size_t end = (offset_bytes + size_bytes + kPageBytes - 1) / kPageBytes;
  std::vector<unsigned char> pages(end - first);
  if (::mincore(bytes_.data() + first * kPageBytes, pages.size() * kPageBytes, pages.data()) != 0)
    return false;
  return std::ranges::all_of(pages, [](unsigned char page) { return (page & 1) != 0; });
}

bool Mapping::populate(size_t offset_bytes, size_t size_bytes) const {
  const size_t first = offset_bytes / kPageBytes * kPageBytes;
  return ::madvise(bytes_.data() + first, whole_pages(offset_bytes + size_bytes) - first,
                   MADV_POPULATE_READ) == 0;
}

Mapping::~Mapping() {
  if (!bytes_.empty()) (void)::munmap(bytes_.data(), bytes_.size());
}

}  // namespace kvcachefs
