// The xattrs of users as the pool stores them: which values and how much an inode may have, for SETXATTR and
// for what is written to `.pool/index`. Any thread. Failure: EINVAL with the expected form, ENOSPC beyond a
// limit; nothing has been changed then.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "tier/pool/name_limits.h"

namespace kvcachefs {

inline constexpr std::string_view kPriorityXattr = "user.kv.priority";

struct XattrChange {
  std::string name;
  std::optional<std::string_view> value;  // none: it is removed
};

Result<void> check_xattr(std::string_view name, std::string_view value);
// Whether the inode may have what the changes, one after the other, leave it. What takes no more than before
// may be set also beyond a limit that was lowered.
Result<void> check_room(const NameLimits& limits, int fd, std::span<const XattrChange> changes);

}  // namespace kvcachefs
