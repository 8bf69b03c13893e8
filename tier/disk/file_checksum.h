// Checksums of an entry's file. They are made with read(2), because reading the pages through a mapping would
// be a SIGBUS after a truncation meanwhile, or where memory has run out for a hole. Any thread.
#pragma once

#include <cstdint>
#include <optional>

#include "base/checksum.h"
#include "base/result.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs {

// Adds the bytes of the file from `offset` on. False: the file ends before.
Result<bool> hash_file(Hasher& hasher, int fd, uint64_t offset, uint64_t bytes);
// The checksum that the content has on a disk, where its holes count as hash_hole() says. None: the file
// could not be read, or ends before.
std::optional<Checksum> checksum_of_file(int fd, uint64_t size_bytes, const ContentLayout& layout,
                                         uint64_t unit_bytes);

}  // namespace kvcachefs
