// System calls for files that must outlive a crash and belong to one process at a time. As base/sys.h: any
// thread, an Error with the call's errno and no message, EINTR is retried.
#pragma once

#include "base/result.h"

namespace kvcachefs::sys {

// Takes the whole file for this open description, until it is closed. EWOULDBLOCK: another has it.
Result<void> lock_exclusively(int fd);

// Content, size and, of a directory, its names are durable on return.
Result<void> sync_file(int fd);

}  // namespace kvcachefs::sys
