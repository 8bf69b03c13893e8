// What a file of a pool with a disk tier says of its copy there, for a successor (tier/survivors.h): an xattr
// of the tmpfs file itself, so it comes and goes with it. Whoever changes what is true of a copy writes the
// mark first where the other order could end in wrong bytes: a clean entry is marked dirty before somebody
// may write it, and cold before its pages go. A dirty one's says what node of the catalog has what it was
// before. Directories and what else has no content are marked with their number in the catalog alone.
// Any thread. Failure: errno of setxattr(2); of a mark that is there and cannot be read, kUnreadable.
#pragma once

#include <cstdint>
#include <optional>

#include "base/result.h"
#include "tier/catalog.h"

namespace kvcachefs {

inline constexpr const char* kCopyXattr = "trusted.kvcachefs.copy";

struct CopyMark {
  // A file's pages are its content, but for kCold.
  enum class State : char { kNone = 'n', kClean = 'c', kCold = 'm', kUnreadable = '?' };
  State state = State::kNone;
  uint64_t node_id = 0;
  uint32_t first_version = 0;    // as Entry has them; of kNone
  bool synced_nameless = false;  // likewise
  CatalogContent content;        // of clean and cold ones
};

Result<void> put_copy_mark(int fd, const CopyMark& mark);
std::optional<CopyMark> copy_mark_of(int fd);
bool has_other_xattrs(int fd);  // than that mark

// On the root of a pool that was just being given a disk tier: what its catalog has may not all be there.
Result<void> put_restoring(int root, bool restoring);
bool is_restoring(int root);

}  // namespace kvcachefs
