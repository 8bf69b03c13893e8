// The files of a pool's `.pool` directory.
// Thread safety: any thread. Failure: EINVAL for text that is no value of that file, EBUSY and others as
// tier/pool.h; nothing is changed then. The message names the pool.
#pragma once

#include <span>
#include <string_view>

#include "base/result.h"
#include "fs/control/control_file.h"
#include "fs/control/controlled_pool.h"

namespace kvcachefs {

using PoolFile = ControlFile<ControlledPool>;

std::span<const PoolFile> pool_files();

// `25%` of what is evictable, `10G`, `1000 entries` or `1000`.
Result<EvictOrder> parse_evict_order(std::string_view text);

}  // namespace kvcachefs
