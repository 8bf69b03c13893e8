// The second tier of one pool: space on a disk, and the catalog that says what lies where. Any thread; log()
// has rules of its own. Failure: as the parts say.
//
// Offsets on the disk are units times unit_bytes(); unit 0 is the superblock's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "alloc/extent_allocator.h"
#include "base/mutex.h"
#include "tier/block_io.h"
#include "tier/catalog/catalog.h"
#include "tier/catalog/catalog_log.h"

namespace kvcachefs {

class SpillStore {
 public:
  SpillStore(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog, uint64_t unit_bytes,
             PoolCounters& counters);

  BlockDevice& device() { return *device_; }
  Catalog& catalog() { return *catalog_; }
  CatalogLog& log() { return log_; }
  const ExtentAllocator& space() const { return allocator_; }
  uint64_t unit_bytes() const { return unit_bytes_; }
  // The bytes may be any number, because a damaged or forged record may hold any size.
  uint64_t units_for(uint64_t bytes) const {
    return bytes / unit_bytes_ + (bytes % unit_bytes_ == 0 ? 0 : 1);
  }
  uint64_t new_id() { return next_id_.fetch_add(1) + 1; }
  // saw_id() is called at start with an id that was given out and that the catalog may not have.
  void saw_id(uint64_t id) { next_id_ = std::max(next_id_.load(), id); }

  // allocate() answers nothing when less space is free.
  std::optional<std::vector<Extent>> allocate(uint64_t bytes);
  // give_back() frees the extents of a content that the catalog never named.
  void give_back(std::span<const Extent> extents);
  // claim() is called at start for each content of the catalog. False: the content is not whole, unshared and
  // within the disk.
  bool claim(const CatalogContent& content);

  // hold() keeps the extents of a content that is being read from being reused, even if the content is
  // dropped meanwhile.
  void hold(const CatalogContent& content) EXCLUDES(held_mutex_);
  void let_go(const CatalogContent& content) EXCLUDES(held_mutex_);
  // hold_dropped() is called at start, with a content that was claimed and that the catalog does not name any
  // more, so that let_go() frees its extents.
  void hold_dropped(const CatalogContent& content) EXCLUDES(held_mutex_);

  // expect_back() announces space that a dropped or replaced content will give back with a later commit. It
  // is called once for each such content, before or after the space is free.
  void expect_back(std::span<const Extent> extents);
  uint64_t leaving_units() const {
    return static_cast<uint64_t>(std::max<int64_t>(0, leaving_units_.load(std::memory_order_relaxed)));
  }

 private:
  void release(std::span<const Extent> extents) EXCLUDES(held_mutex_);

  const std::unique_ptr<BlockDevice> device_;
  const std::unique_ptr<Catalog> catalog_;
  const uint64_t unit_bytes_;
  ExtentAllocator allocator_;
  std::atomic<uint64_t> next_id_;
  std::atomic<int64_t> leaving_units_{0};

  struct Held {
    uint32_t holders = 0;
    bool dropped = false;
    uint64_t count = 0;
  };
  Mutex held_mutex_;
  std::map<uint64_t, Held> held_ GUARDED_BY(held_mutex_);  // by the first unit of an extent
  CatalogLog log_;
};

}  // namespace kvcachefs
