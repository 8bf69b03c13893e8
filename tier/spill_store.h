// The second tier of one pool: space on a disk, and the catalog that says what lies where. Any thread, but
// for what log() says of itself. Failure: as its parts say; opening fails with a sentence that names the
// path, and leaves nothing behind but what was there.
//
// Offsets on the disk are units times unit_bytes(); unit 0 is the superblock's.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "alloc/extent_allocator.h"
#include "base/mutex.h"
#include "tier/block_io.h"
#include "tier/catalog.h"
#include "tier/catalog_log.h"

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
  // Of any size, that of a record that somebody made up too.
  uint64_t units_for(uint64_t bytes) const {
    return bytes / unit_bytes_ + (bytes % unit_bytes_ == 0 ? 0 : 1);
  }
  uint64_t new_id() { return next_id_.fetch_add(1) + 1; }
  // At start: one that was given out and that the catalog may not have.
  void saw_id(uint64_t id) { next_id_ = std::max(next_id_.load(), id); }

  // Empty when there is not so much free.
  std::optional<std::vector<Extent>> allocate(uint64_t bytes);
  // Of a content that the catalog never named.
  void give_back(std::span<const Extent> extents);
  // At start, for each content of the catalog: false if it is not whole and unshared within the disk.
  bool claim(const CatalogContent& content);

  // Keeps what is being served from where it lies from being written over, although it was dropped meanwhile.
  void hold(const CatalogContent& content) EXCLUDES(held_mutex_);
  void let_go(const CatalogContent& content) EXCLUDES(held_mutex_);
  // At start: of one that was claimed and that the catalog does not name any more, so that to let go of it
  // frees it.
  void hold_dropped(const CatalogContent& content) EXCLUDES(held_mutex_);

  // Space that is on its way back: dropped or replaced, and not committed yet. Told once for each content
  // that was given to the log, before or after it is free.
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
  std::map<uint64_t, Held> held_ GUARDED_BY(held_mutex_);  // by an extent's start
  CatalogLog log_;
};

}  // namespace kvcachefs
