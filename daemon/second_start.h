// A start at a mount point whose kvcachefsd lives. A daemon that was unmounted in this mount namespace alone
// still serves processes that have the mount elsewhere, or files of it open. The start mounts that daemon's
// file system here again, with the pools that the daemon has. Main thread. Failure: EBUSY and a sentence that
// says which process serves, and for which processes.
#pragma once

#include "base/result.h"
#include "daemon/config.h"

namespace kvcachefs {

Result<void> mount_again(const Config& config);

}  // namespace kvcachefs
