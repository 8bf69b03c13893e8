// Opens the disk and the catalog that a pool's options name, sees that they belong together, and attaches
// them to the pool, whose entries of before then come back. Any thread; blocks on the disk. Failure: a
// sentence that names the path; the pool is as it was.
#pragma once

#include "base/result.h"
#include "tier/pool.h"

namespace kvcachefs {

// kAdopted: the pool is one that was taken over from a process that died (Pool::adopt).
enum class Attaching { kNew, kAdopted };
Result<void> open_disk_tier(Pool& pool, const PoolOptions& options, Attaching how = Attaching::kNew);

}  // namespace kvcachefs
