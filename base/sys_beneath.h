// The only way to resolve a path of several components that users can change. Any thread. The calls reach
// nothing above `directory`, whatever is renamed meanwhile.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs::sys {

// open_beneath() never waits: it follows no link and enters no mount. Both call openat2(2). ELOOP: the path
// has a link. EXDEV: it leads out of `directory` or into another mount. ENAMETOOLONG: it is longer than
// PATH_MAX. EAGAIN or EINTR: renames or signals interrupted each of 16 tries.
Result<UniqueFd> open_beneath(int directory, const char* path, int flags);
// To a process whose root is `directory` the path leads to the same, but through no link of /proc.
Result<UniqueFd> open_in_root(int directory, const char* path, int flags);

}  // namespace kvcachefs::sys
