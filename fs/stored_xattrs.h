// The xattrs of users as the pool stores them: which values and how much an inode may have, for SETXATTR and
// for the records that are written to `.pool/index`. Any thread. Failure: EINVAL with the expected form,
// ENOSPC beyond a limit; nothing has been changed then.
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
// Called when a change of this inode's attributes has failed with ENOSPC. A tmpfs uses a pool's inodes for
// attributes, one for each KiB (mm/shmem.c, BOGO_INODE_SIZE), so entries leave for them as for names. An
// owner over the share gets none of the last inodes. kRoom: the caller may try again. kNoRoom: the failure
// has been counted.
Waited wait_for_attributes(Pool& pool, uint64_t ino, std::span<const XattrChange> changes, Patience patience);
// Checks the limits for the attributes that the inode has after each of the changes, in their order. A change
// that takes no more than before is allowed even beyond a limit that was lowered.
Result<void> check_room(const NameLimits& limits, int fd, std::span<const XattrChange> changes);

}  // namespace kvcachefs
