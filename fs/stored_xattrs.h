// The xattrs of users as the pool stores them: which values and how much an inode may have, for SETXATTR and
// for what is written to `.pool/index`. Any thread. Failure: EINVAL with the expected form, ENOSPC beyond a
// limit; nothing has been changed then.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tier/pool/name_limits.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

inline constexpr std::string_view kPriorityXattr = "user.kv.priority";

struct XattrChange {
  std::string name;
  std::optional<std::string_view> value;  // none: it is removed
};

Result<void> check_xattr(std::string_view name, std::string_view value);
// Called when a change of this inode's attributes has met ENOSPC. A tmpfs takes the inodes of a pool for
// attributes, one for each KiB (mm/shmem.c, BOGO_INODE_SIZE): entries leave for them as for names. The
// attributes of who is over the share get none of the last ones. kRoom says to try again; kNoRoom is counted.
Waited wait_for_attributes(Pool& pool, uint64_t ino, std::span<const XattrChange> changes, Patience patience);
// Whether the inode may have what the changes, one after the other, leave it. What takes no more than before
// may be set also beyond a limit that was lowered.
Result<void> check_room(const NameLimits& limits, int fd, std::span<const XattrChange> changes);

}  // namespace kvcachefs
