// What `.pool/index` does with records: it sets the metadata of entries. Any thread; it may wait for the
// catalog. Failure: an error that names the record; EINVAL, ENOENT, EACCES, EPERM and EBUSY (names are still
// being brought back) are found before the first record is carried out, ENOSPC leaves the ones before it
// done.
#pragma once

#include <span>

#include "base/result.h"
#include "fs/control/controlled_pool.h"
#include "fs/control/index_records.h"
#include "fs/control/readable_tree.h"

namespace kvcachefs {

// A change of xattrs takes the catalog's memory: it is to wait as it would for SETXATTR
// (fs/operations.h, when_catalog_takes_more()). EIO: the disk does not answer.
Result<void> wait_for_catalog(Pool& pool);

// Each value is set as setxattr(2) by the caller would set it. Tokens count as a whole: until all of a record
// is set, its entry has none.
Result<void> index_entries(ControlledPool& target, const Rights& rights,
                           std::span<const IndexRecord> records);

}  // namespace kvcachefs
