// The handles of open control files, which the kernel keeps across a takeover, and the check of a caller
// against them. Pure functions, any thread. Failure: EACCES and EINVAL, with a sentence.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/checksum.h"
#include "base/result.h"
#include "fs/caller.h"
#include "fs/control/readable_tree.h"
#include "fs/fuse.h"

namespace kvcachefs {

inline constexpr int kGenerationShift = 32;  // where the daemon's generation stands in a handle

// The handle of a file that only its opener may use: bit 63, the opener (the process, or a hash of its
// rights), and a number that tells the handle from the opener's other handles. A process that takes over thus
// knows the opener from the handle.
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

// Identifies the caller of a query or a record by its rights: a program that was started with another
// caller's descriptor, and has more rights, is another caller.
inline uint64_t opener_with(const Rights& rights) {
  const std::string text = rights.text();
  return checksum_of(std::as_bytes(std::span(text))).low >> (64 - Caller::kProcessBits);
}

// Refuses O_DIRECT, without which no request is asynchronous: the thread of such a request may execute
// another program before the daemon looks up the thread's rights. A caller may clear O_DIRECT while such a
// request is under way, and gains nothing: the rights must still be those of the open, which is never
// asynchronous.
inline Result<void> check_rights(const Rights& rights, const fuse_file_info& file, std::string_view name) {
  if ((file.flags & O_DIRECT) != 0) return fail(EINVAL, fmt::format("{} does not support O_DIRECT", name));
  if (is_opened_by(opener_with(rights), file.fh)) return {};
  return fail(EACCES, fmt::format("{} is used with other rights than it was opened with", name));
}

}  // namespace kvcachefs
