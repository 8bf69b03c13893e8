// Whether what the catalog has of a node is what the pool's files say. Any thread; never fails.
#pragma once

#include "tier/catalog/catalog.h"

namespace kvcachefs {

inline bool same_content(const CatalogContent& a, const CatalogContent& b) {
  return a.size_bytes == b.size_bytes && a.version == b.version && a.checksum.low == b.checksum.low &&
         a.checksum.high == b.checksum.high && a.extents == b.extents;
}

inline bool same_time(const timespec& a, const timespec& b) {
  return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
}

inline bool same_node(const CatalogNode& a, const CatalogNode& b) {
  return a.mode == b.mode && a.uid == b.uid && a.gid == b.gid && a.device == b.device &&
         a.pinned == b.pinned && same_time(a.accessed, b.accessed) && same_time(a.modified, b.modified) &&
         same_time(a.changed, b.changed) && a.link_target == b.link_target && a.xattrs == b.xattrs;
}

}  // namespace kvcachefs
