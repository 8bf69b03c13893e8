// open_disk_tier() opens the disk and the catalog that a pool's options name, checks that they belong
// together, and attaches them to the pool; the entries that the catalog has then come back. Any thread;
// blocks on the disk. Failure: a sentence that names the path; the pool is as it was.
#pragma once

#include "base/result.h"
#include "tier/pool/pool.h"

namespace kvcachefs {

// kAdopted: the pool was taken over from a process that died (Pool::adopt). Its disk and catalog exist
// already, or are away: nothing is made, and nothing is forced. kBehind: what the catalog has is left to
// Recovery::bring_back(), as kAdopted leaves what that process did not bring back.
enum class Attaching { kNew, kBehind, kAdopted };
Result<void> open_disk_tier(Pool& pool, const PoolOptions& options, Attaching how = Attaching::kNew);
// Says whether kAdopted would find what it needs: path, superblock, catalog, locks. Gives all back at once.
Result<void> probe_disk_tier(const PoolOptions& options);
// kAdopted and probe_disk_tier() refuse a catalog that has ended a process (base/risky_read.h); after this
// call they try it again.
void try_catalog_again(const PoolOptions& options);
// Looks in the same way at a disk that another process holds, as far as that goes without its locks.
Result<void> look_at_disk_tier(const PoolOptions& options);

}  // namespace kvcachefs
