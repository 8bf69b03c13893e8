// Where a file's pages lie: on which memory nodes, and how much of it in huge pages. Any thread. Never fails:
// what cannot be found out is left out. Maps the file for the duration of the call and touches each of its
// pages.
#pragma once

#include <cstdint>
#include <vector>

namespace kvcachefs {

struct PlacedBytes {
  int node = 0;
  uint64_t bytes = 0;
  uint64_t huge_bytes = 0;
};

// The nodes come from move_pages(2) asked for without a target; huge means mapped by a PMD, which
// PAGEMAP_SCAN tells (Linux 6.7, Documentation/admin-guide/mm/pagemap.rst). On older kernels nothing counts
// as huge.
std::vector<PlacedBytes> measure_placement(int fd);

}  // namespace kvcachefs
