// CopyMarks keeps the marks (tier/catalog/copy_mark.h) that tell a successor what is true of an entry's copy
// on the disk. Any thread; the caller holds the entry's shard, and `fd` is the entry's file. Without a
// supervisor there are no marks, and it does nothing. Failure: a mark that could not be written and would lie
// is removed, or else no successor comes.
#pragma once

#include "tier/catalog/copy_mark.h"
#include "tier/pool/pool_disk.h"

namespace kvcachefs {

class CopyMarks : DiskPart {
 public:
  explicit CopyMarks(const DiskPart& part) : DiskPart(part) {}

  // `node_id`: the entry's number in the catalog, if the entry does not say it yet.
  Result<void> mark_copy(Entry& entry, int fd, CopyMark::State state, const CatalogContent* content,
                         uint64_t node_id = 0);
  void became_dirty(Entry& entry, int fd);          // it may be written now
  void cut(Entry& entry, int fd, bool to_nothing);  // it is about to be truncated, or a cold one just was

  // A dirty entry whose mark has its number in the catalog, now or in the future, can be copied while it is
  // written: its mark cannot be changed then. number() sees to that before, while no write can be under way.
  bool is_numbered(const Entry& entry, int fd) const;
  Result<void> number(Entry& entry, int fd);
  bool numbers_at_open() const;

 private:
  uint64_t place_hash_of(int fd) const;  // 0: it has no name
};

}  // namespace kvcachefs
