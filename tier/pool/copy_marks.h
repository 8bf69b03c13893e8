// CopyMarks keeps the marks (tier/catalog/copy_mark.h) that tell a successor what is true of an entry's copy
// on the disk. Any thread; the caller holds the entry's shard. Without a supervisor there are no marks, and
// it does nothing. Failure: a mark that could not be written and would lie is removed, or else no successor
// comes.
#pragma once

#include "tier/catalog/copy_mark.h"
#include "tier/pool/pool_part.h"

namespace kvcachefs {

class CopyMarks : PoolPart {
 public:
  explicit CopyMarks(const PoolPart& part) : PoolPart(part) {}

  Result<void> mark_copy(Entry& entry, int fd, CopyMark::State state, const CatalogContent* content);
  void mark_dirty(Entry& entry);
  void became_dirty(Entry& entry);  // it may be written now
};

}  // namespace kvcachefs
