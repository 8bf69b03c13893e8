// The one way to resolve a path of several components that lie in users' hands. Any thread. Nothing here
// waits: no link is followed, no mount is entered, nothing above `directory` is reached, whatever is renamed
// meanwhile.
#pragma once

#include "base/result.h"
#include "base/unique_fd.h"

namespace kvcachefs::sys {

// openat2(2). ELOOP: a link is on the way. EXDEV: it leads out. ENAMETOOLONG: more than PATH_MAX. EAGAIN:
// renamed under it too often.
Result<UniqueFd> open_beneath(int directory, const char* path, int flags);

}  // namespace kvcachefs::sys
