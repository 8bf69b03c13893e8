// The files of a pool's `.pool` directory and of the administrator's `.kvcachefs/pools/NAME`.
// Thread safety: any thread. Failure: EINVAL for text that is no value of that file, EBUSY and others as
// tier/pool.h, EPERM for what only the administrator may; nothing is changed then. The message names the
// pool.
#pragma once

#include <span>

#include "fs/control/control_file.h"
#include "fs/control/controlled_pool.h"

namespace kvcachefs {

using PoolFile = ControlFile<ControlledPool>;

std::span<const PoolFile> pool_files();

}  // namespace kvcachefs
