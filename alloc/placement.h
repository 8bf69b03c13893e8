// The places of a file's pages: on which memory nodes they lie, and how much of the file is in huge pages.
// Any thread. Never fails: an error ends the survey early, and a page whose node is unknown counts for node
// 0. The call maps the file while it runs and touches a page of each 2 MiB that has some. It does not wait
// for the inode's lock, which lseek(2) with SEEK_DATA takes and a client's write holds for as long as its
// source's pages need.
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
std::vector<PlacedBytes> measure_placement(int fd);

}  // namespace kvcachefs
