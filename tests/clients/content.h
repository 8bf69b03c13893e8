// Bytes that tell their entry and their offset, so that a reader can check a whole entry without a copy. Any
// thread; sizes are multiples of 8.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

namespace kvcachefs::clients {

inline uint64_t content_word(uint64_t key, uint64_t index) {
  return (key + 1) * 0x9e3779b97f4a7c15u ^ (index + 1) * 0xd1342543de82ef95u;
}

inline void fill_content(uint64_t key, std::span<std::byte> bytes) {
  for (size_t index = 0; index < bytes.size() / 8; ++index) {
    const uint64_t word = content_word(key, index);
    std::memcpy(bytes.data() + index * 8, &word, 8);
  }
}

// The offset of the first wrong word, if there is one. The sum of differences is fast; the search runs only
// if it is not 0.
inline std::optional<size_t> first_wrong_byte(uint64_t key, std::span<const std::byte> bytes) {
  uint64_t different = 0;
  for (size_t index = 0; index < bytes.size() / 8; ++index) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + index * 8, 8);
    different |= word ^ content_word(key, index);
  }
  if (different == 0) return std::nullopt;
  for (size_t index = 0; index < bytes.size() / 8; ++index) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + index * 8, 8);
    if (word != content_word(key, index)) return index * 8;
  }
  return std::nullopt;
}

}  // namespace kvcachefs::clients
