// The files of a pool's `.pool` directory and of the administrator's `.kvcachefs/pools/NAME`.
// Thread safety: any thread. Failure: EINVAL for text that is no value of the file, EBUSY and others as in
// tier/pool/pool.h, EPERM for what only the administrator may do. A failed write changes nothing. The message
// names the pool.
#pragma once

#include <span>

#include "fs/control/control_file.h"
#include "fs/control/controlled_pool.h"

namespace kvcachefs {

using PoolFile = ControlFile<ControlledPool>;

std::span<const PoolFile> pool_files();
bool changes_settings(const PoolFile& file);  // an order to it changes what the pool has at the next start

}  // namespace kvcachefs
