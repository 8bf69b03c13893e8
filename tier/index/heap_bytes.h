// What containers take of the process's heap, with what glibc's allocator adds. Any thread; never fails.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace kvcachefs {

// For this many bytes: a word more, in multiples of two words, at least four.
constexpr uint64_t allocated_bytes(uint64_t bytes) {
  return bytes == 0 ? 0 : std::max<uint64_t>(32, (bytes + sizeof(size_t) + 15) & ~uint64_t{15});
}

template <class T>
uint64_t vector_bytes(const std::vector<T>& vector) {
  return allocated_bytes(vector.capacity() * sizeof(T));
}

// A deque of libstdc++ is pieces of 512 bytes and pointers to them.
template <class T>
uint64_t deque_bytes(const std::deque<T>& deque) {
  const uint64_t pieces = deque.size() * sizeof(T) / 512 + 1;
  return pieces * (allocated_bytes(512) + sizeof(T*));
}

}  // namespace kvcachefs
