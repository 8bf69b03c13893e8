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

// The bytes are page-aligned and not zero.
std::span<std::byte> payload(uint64_t size_bytes);

// An entry is stored as engines do it: temporary name, one write, close, rename.
void store_entry(const std::string& directory, const std::string& name, std::span<const std::byte> bytes);

// The entries are named `prefix0`, `prefix1`, ...
void store_entries(const std::string& directory, const std::string& prefix, uint64_t count,
                   std::span<const std::byte> bytes);
void remove_entries(const std::string& directory, const std::string& prefix, uint64_t count);
std::vector<UniqueFd> open_entries(const std::string& directory, const std::string& prefix, uint64_t count);

// The entry is read from the start to the end, in pieces of the size of `piece`.
void read_entry(int fd, uint64_t size_bytes, std::span<std::byte> piece);
// The call maps the entry, adds up all its words, and unmaps it.
uint64_t scan_entry(int fd, uint64_t size_bytes);

}  // namespace kvcachefs::bench
