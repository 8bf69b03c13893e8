#include "alloc/placement.h"

#include <linux/fs.h>
#include <numaif.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <map>

#include "base/sys.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kHugeBytes = uint64_t{2} << 20;
constexpr uint64_t kPageBytes = 4096;
// A larger file is looked at in windows of this size.
constexpr uint64_t kWindowBytes = uint64_t{64} << 20;
constexpr uint64_t kLookedAtMost = uint64_t{64} << 30;  // mincore(2) takes 0.4 s for so much of a file
constexpr uint64_t kStatBlockBytes = 512;               // the unit of st_blocks, stat(2)

// Debian 12's linux/fs.h lacks these; the values are from the kernel's include/uapi/linux/fs.h.
struct PageRegion {
  uint64_t start, end, categories;
};
struct PagemapScan {
  uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
  uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
constexpr unsigned long kPagemapScan = _IOWR('f', 16, PagemapScan);
constexpr uint64_t kPageIsHuge = 1 << 6;

// A shared mapping that begins at a 2 MiB boundary, so that a huge page can be mapped as one.
class Window {
 public:
  Window(int fd, uint64_t offset, uint64_t length) : span_(length + kHugeBytes) {
    void* room = mmap(nullptr, span_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) return;
    room_ = static_cast<char*>(room);
    char* aligned = room_ + (kHugeBytes - reinterpret_cast<uintptr_t>(room_) % kHugeBytes) % kHugeBytes;
    void* mapped = mmap(aligned, length, PROT_READ, MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset));
    if (mapped != MAP_FAILED) data_ = aligned;
  }
  ~Window() {
    if (room_ != nullptr) munmap(room_, span_);
  }
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  char* data() const { return data_; }

 private:
  uint64_t span_;
  char* room_ = nullptr;
  char* data_ = nullptr;
};

uint64_t huge_bytes_in(int pagemap, const char* begin, const char* end) {
  std::array<PageRegion, 256> regions{};
  PagemapScan scan{};
  scan.size = sizeof scan;
  scan.start = reinterpret_cast<uintptr_t>(begin);
  scan.end = reinterpret_cast<uintptr_t>(end);
  scan.vec = reinterpret_cast<uintptr_t>(regions.data());
  scan.vec_len = regions.size();
  scan.category_mask = kPageIsHuge;
  scan.return_mask = kPageIsHuge;
  auto found = sys::control(pagemap, kPagemapScan, &scan);
  uint64_t bytes = 0;
  for (int i = 0; found && i < *found; ++i) bytes += regions[i].end - regions[i].start;
  return bytes;
}

int node_at(char* address) {
  void* page = address;
  int node = -1;
  if (move_pages(0, 1, &page, nullptr, &node, 0) != 0) return -1;
  return node;
}

}  // namespace

std::vector<PlacedBytes> measure_placement(int fd, uint64_t most_bytes) {
  std::map<int, PlacedBytes> nodes;
  auto attributes = sys::stat_of(fd);
  auto pagemap = sys::open_at(AT_FDCWD, "/proc/self/pagemap", O_RDONLY);
  if (!attributes || !pagemap || !S_ISREG(attributes->st_mode)) return {};
  const uint64_t size = std::min({static_cast<uint64_t>(attributes->st_size), kLookedAtMost, most_bytes});
  const uint64_t allocated = static_cast<uint64_t>(attributes->st_blocks) * kStatBlockBytes;
  std::vector<unsigned char> resident(kWindowBytes / kPageBytes);
  uint64_t seen = 0;
  uint64_t hole = 0;
  for (uint64_t offset = 0; offset < size && seen < allocated && hole < kLongHoleBytes;
       offset += kWindowBytes) {
    const uint64_t length = std::min(size - offset, kWindowBytes);
    const Window window(fd, offset, length);
    if (window.data() == nullptr || mincore(window.data(), length, resident.data()) != 0) break;
    const uint64_t seen_before = seen;
    for (uint64_t at = 0; at < length; at += kHugeBytes) {
      const uint64_t end = std::min(length, at + kHugeBytes);
      uint64_t bytes = 0;
      char* touched = nullptr;
      for (uint64_t page = at; page < end; page += kPageBytes) {
        if ((resident[page / kPageBytes] & 1) == 0) continue;
        if (touched == nullptr) touched = window.data() + page;
        bytes += std::min(kPageBytes, end - page);
      }
      // A page that is not there is not touched, because reading a hole through a mapping would fill it.
      if (touched == nullptr || madvise(touched, kPageBytes, MADV_POPULATE_READ) != 0) continue;
      PlacedBytes& placed = nodes[std::max(0, node_at(touched))];
      placed.bytes += bytes;
      placed.huge_bytes +=
          std::min(huge_bytes_in(pagemap->get(), window.data() + at,
                                 window.data() + (end + kPageBytes - 1) / kPageBytes * kPageBytes),
                   bytes);
      seen += bytes;
    }
    hole = seen > seen_before ? 0 : hole + length;
  }
  std::vector<PlacedBytes> result;
  for (auto& [node, placed] : nodes) {
    placed.node = node;
    result.push_back(placed);
  }
  return result;
}

}  // namespace kvcachefs
