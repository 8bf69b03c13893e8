// The checksum of an entry's content: XXH3, 128 bits. It is made while content goes to the disk and verified
// as the content comes back. Thread safety: checksum_of() from any thread; a Hasher belongs to one thread at
// a time. Failure: none (running out of memory stops the process).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

struct XXH3_state_s;

namespace kvcachefs {

struct Checksum {
  uint64_t low = 0;
  uint64_t high = 0;
  bool operator==(const Checksum&) const = default;
};

// A Hasher hashes content that comes in pieces: the digest depends on the bytes alone, not on where they were
// cut.
class Hasher {
 public:
  Hasher();

  void update(std::span<const std::byte> bytes);
  // The checksum of the bytes since the start or the last reset(); further bytes may follow.
  Checksum digest() const;
  void reset();

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

Checksum checksum_of(std::span<const std::byte> bytes);

}  // namespace kvcachefs
