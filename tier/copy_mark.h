// What a file of a pool with a disk tier says of its copy there, for a successor (tier/survivors.h): an xattr
// of the tmpfs file itself, so it comes and goes with it. Whoever changes what is true of a copy writes the
// mark first where the other order could end in wrong bytes: a clean entry is marked dirty before somebody
// may write it, and cold before its pages go. Directories and what else has no content are marked with their
// number in the catalog alone. Any thread. Failure: errno of setxattr(2); a mark that is none counts as not
// there.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "tier/catalog.h"

namespace kvcachefs {

inline constexpr const char* kCopyXattr = "trusted.kvcachefs.copy";

struct CopyMark {
  enum class State : char { kNone = 'n', kClean = 'c', kCold = 'm' };
  State state = State::kNone;
  uint64_t node_id = 0;
  CatalogContent content;  // of clean and cold ones
};

Result<void> put_copy_mark(int fd, const CopyMark& mark);
std::optional<CopyMark> copy_mark_of(int fd);
bool has_other_xattrs(int fd);  // than that mark

}  // namespace kvcachefs
