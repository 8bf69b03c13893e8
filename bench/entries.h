// What the rows do to entries, in one place so that all contestants do the same. Any thread; throws
// BenchError.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace kvcachefs::bench {

// Page-aligned bytes that are no zeros.
std::span<std::byte> payload(uint64_t size_bytes);

// Temporary name, one write, close, rename: as engines store.
void store_entry(const std::string& directory, const std::string& name, std::span<const std::byte> bytes);

// `count` entries named `prefix0`, `prefix1`, ...
void store_entries(const std::string& directory, const std::string& prefix, uint64_t count,
                   std::span<const std::byte> bytes);
void remove_entries(const std::string& directory, const std::string& prefix, uint64_t count);
std::vector<UniqueFd> open_entries(const std::string& directory, const std::string& prefix, uint64_t count);

// In pieces of 1 MiB from the start to the end.
void read_entry(int fd, uint64_t size_bytes, std::span<std::byte> piece);
// Maps, adds up all words, unmaps.
uint64_t scan_entry(int fd, uint64_t size_bytes);

}  // namespace kvcachefs::bench
