// The places of a file's pages: on which memory nodes they lie, and how much of the file is in huge pages.
// Any thread. Never fails: an error ends the survey early, and a page whose node is unknown counts for node
// 0. The call maps the file while it runs and touches a page of each 2 MiB that has some. It does not wait
// for the inode's lock, which lseek(2) with SEEK_DATA takes and a client's write holds for as long as its
// source's pages need. What a sparse file has behind a hole of kLongHoleBytes is left out: the kernel looks
// for pages as long as it takes, and that is 0.4 s for 64 GiB.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcachefs {

struct PlacedBytes {
  int node = 0;
  uint64_t bytes = 0;
  uint64_t huge_bytes = 0;
};

// The nodes come from move_pages(2) without target nodes. A huge page is one mapped by a PMD, as PAGEMAP_SCAN
// tells (Linux 6.7, Documentation/admin-guide/mm/pagemap.rst); on older kernels no page counts as huge.
// The look is at the first `most_bytes` of the file.
inline constexpr uint64_t kLongHoleBytes = uint64_t{256} << 20;
std::vector<PlacedBytes> measure_placement(int fd, uint64_t most_bytes = UINT64_MAX);

}  // namespace kvcachefs
