// The handles of open control files, which the kernel keeps across a takeover. Pure functions, any thread.
// Failure: none.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/checksum.h"
#include "fs/caller.h"
#include "fs/control/readable_tree.h"

namespace kvcachefs {

inline constexpr int kGenerationShift = 32;  // where the daemon's generation stands in a handle

// The handle of a file that is written with its opener's rights alone: bit 63, the opener (the process, or a
// hash of its rights), and a number that tells it from the opener's other handles. A successor can thus tell
// the opener from the handle.
inline constexpr uint64_t kOpenersHandle = uint64_t{1} << 63;
inline constexpr int kNumberBits = 63 - Caller::kProcessBits;
inline constexpr int kGenerationBits = 5;

inline uint64_t openers_handle(uint64_t opener, uint64_t next_handle) {
  constexpr int kCountBits = kNumberBits - kGenerationBits;
  const uint64_t generation = (next_handle >> kGenerationShift) & ((1 << kGenerationBits) - 1);
  const uint64_t count = next_handle & ((1 << kCountBits) - 1);
  return kOpenersHandle | opener << kNumberBits | generation << kCountBits | count;
}

inline bool is_opened_by(uint64_t opener, uint64_t handle) {
  return handle >> kNumberBits == (kOpenersHandle >> kNumberBits | opener);
}

// Who writes records: a program with more rights that was started with another's descriptor is not he.
inline uint64_t opener_with(const Rights& rights) {
  const std::string text = rights.text();
  return checksum_of(std::as_bytes(std::span(text))).low >> (64 - Caller::kProcessBits);
}

}  // namespace kvcachefs
