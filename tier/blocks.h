// Arithmetic of bytes: what a file takes of a tmpfs, whose blocks are pages; rounding; shares. Any thread;
// never fails.
#pragma once

#include <sys/stat.h>

#include <cstdint>

namespace kvcachefs {

inline constexpr uint64_t kBlockBytes = 4096;
inline constexpr uint64_t kStatBlockBytes = 512;  // the unit of st_blocks, stat(2)

constexpr uint64_t rounded_up(uint64_t bytes, uint64_t unit_bytes = kBlockBytes) {
  return (bytes + unit_bytes - 1) / unit_bytes * unit_bytes;
}
constexpr uint64_t percent_of(uint64_t bytes, uint64_t percent) {
  return bytes / 100 * percent + bytes % 100 * percent / 100;
}
inline uint64_t size_of(const struct stat& file) {
  return static_cast<uint64_t>(file.st_size);
}
inline uint64_t allocated_bytes_of(const struct stat& file) {
  return static_cast<uint64_t>(file.st_blocks) * kStatBlockBytes;
}

}  // namespace kvcachefs
