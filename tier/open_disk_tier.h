// Opens the disk and the catalog that a pool's options name, sees that they belong together, and attaches
// them to the pool, whose entries of before then come back. Any thread; blocks on the disk. Failure: a
// sentence that names the path; the pool is as it was.
#pragma once

#include "base/result.h"
#include "tier/pool.h"

namespace kvcachefs {

// kAdopted: the pool is one that was taken over from a process that died (Pool::adopt). Disk and catalog are
// there then, or are away: nothing is made, and nothing forced.
enum class Attaching { kNew, kAdopted };
Result<void> open_disk_tier(Pool& pool, const PoolOptions& options, Attaching how = Attaching::kNew);
// Whether kAdopted would find what it needs: path, superblock, catalog, locks. Lets go of it all again at
// once.
Result<void> probe_disk_tier(const PoolOptions& options);
// The same of a disk that another process has: what can be seen without its locks.
Result<void> look_at_disk_tier(const PoolOptions& options);

}  // namespace kvcachefs
