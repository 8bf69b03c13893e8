// How a content lies in units: extents that hold its data, and holes, which are extents without a place on
// the disk. tier/FORMAT.md defines a hole. Because a hole takes no space, code that lists extents for their
// space skips it with is_hole().
//
// Any thread; no state. Failure: errno of cachestat(2) or lseek(2).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "alloc/extent.h"
#include "base/checksum.h"
#include "base/result.h"
#include "tier/catalog/catalog.h"

namespace kvcachefs {

// Because unit 0 is the superblock's, no content lies there, and an extent that starts at 0 is a hole.
constexpr bool is_hole(const Extent& extent) {
  return extent.start == 0;
}
bool has_holes(std::span<const Extent> extents);

// The most holes of a content. Its extents go into the file's mark (tier/catalog/copy_mark.h), which has room
// for 4092, and a file without a mark cannot be evicted. This many holes and as many pieces of data between
// them take half of that; the other half is left for a disk whose free space is in pieces.
inline constexpr size_t kMostHoles = 1024;

// Holes and data in turn, in the file's order. Of a data run only the count of units has a meaning.
struct ContentLayout {
  std::vector<Extent> runs;
  uint64_t data_units = 0;
  uint64_t zero_units = 0;  // of data_units: small holes that count as data, in a file that has too many
  // Each page of the file is there, so that reading it by a mapping fills no hole. The memory that a file
  // takes says nothing of that: a client may have allocated as much beyond its end.
  bool is_whole = false;
};

// The layout of a file of a tmpfs. A unit with a page is data. In a file with more than kMostHoles holes the
// smaller ones count as data too.
Result<ContentLayout> layout_of_file(int fd, uint64_t size_bytes, uint64_t unit_bytes);
ContentLayout layout_without_holes(uint64_t units);
bool has_layout(std::span<const Extent> extents, const ContentLayout& layout);
// The extents of a content with that layout in `space`, which has exactly as many units as the layout has
// data.
std::vector<Extent> lay_out(const ContentLayout& layout, std::span<const Extent> space);

// hash_hole() adds what a hole counts as in a content's checksum.
void hash_hole(Hasher& hasher, uint64_t units);

// The bytes of the content without its holes.
uint64_t data_bytes_of(std::span<const Extent> extents, uint64_t size_bytes, uint64_t unit_bytes);
inline uint64_t data_bytes_of(const CatalogContent& content, uint64_t unit_bytes) {
  return data_bytes_of(content.extents, content.size_bytes, unit_bytes);
}
// The offset on the disk of the content's first byte; 0: it has no data.
uint64_t first_place_of(std::span<const Extent> extents, uint64_t unit_bytes);
// seek_in_content() is lseek(2) with SEEK_DATA or SEEK_HOLE; nothing stands for ENXIO.
std::optional<uint64_t> seek_in_content(const CatalogContent& content, uint64_t unit_bytes, uint64_t offset,
                                        bool to_data);

}  // namespace kvcachefs
