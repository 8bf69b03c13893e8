#include "tier/disk/spill_store.h"

#include "base/check.h"
#include "tier/catalog/content_layout.h"

namespace kvcachefs {

constexpr Extent kUnitOfSuperblock{0, 1};
constexpr uint64_t kMostFileBytes = INT64_MAX;  // the kernel's limit of a file's size

SpillStore::SpillStore(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                       uint64_t unit_bytes, PoolCounters& counters)
    : device_(std::move(device)),
      catalog_(std::move(catalog)),
      unit_bytes_(unit_bytes),
      allocator_(device_->size_bytes() / unit_bytes),
      next_id_(catalog_->highest_id()),
      log_(*device_, *catalog_, counters, [this](std::span<const Extent> extents) { release(extents); }) {
  KVCACHEFS_CHECK(allocator_.claim(kUnitOfSuperblock));
}

std::optional<std::vector<Extent>> SpillStore::allocate(uint64_t bytes) {
  if (bytes == 0) return std::vector<Extent>{};
  return allocator_.allocate(units_for(bytes));
}

void SpillStore::give_back(std::span<const Extent> extents) {
  for (const Extent& extent : extents)
    if (!is_hole(extent)) allocator_.free({&extent, 1});
}

bool SpillStore::claim(const CatalogContent& content) {
  if (content.size_bytes > kMostFileBytes) return false;
  uint64_t left = units_for(content.size_bytes);
  size_t claimed = 0;
  for (const Extent& extent : content.extents) {
    if (extent.count > left || (!is_hole(extent) && !allocator_.claim(extent))) break;
    left -= extent.count;
    ++claimed;
  }
  if (claimed == content.extents.size() && left == 0) return true;
  give_back(std::span(content.extents).first(claimed));
  return false;
}

void SpillStore::hold(const CatalogContent& content) {
  MutexLock lock(held_mutex_);
  for (const Extent& extent : content.extents) {
    if (is_hole(extent)) continue;
    Held& held = held_[extent.start];
    ++held.holders;
    held.count = extent.count;
  }
}

void SpillStore::hold_dropped(const CatalogContent& content) {
  hold(content);
  MutexLock lock(held_mutex_);
  for (const Extent& extent : content.extents)
    if (!is_hole(extent)) held_[extent.start].dropped = true;
}

void SpillStore::let_go(const CatalogContent& content) {
  std::vector<Extent> free;
  {
    MutexLock lock(held_mutex_);
    for (const Extent& extent : content.extents) {
      auto found = held_.find(extent.start);
      if (found == held_.end() || --found->second.holders > 0) continue;
      if (found->second.dropped) free.push_back(extent);
      held_.erase(found);
    }
  }
  allocator_.free(free);
}

void SpillStore::expect_back(std::span<const Extent> extents) {
  for (const Extent& extent : extents)
    if (!is_hole(extent)) leaving_units_ += static_cast<int64_t>(extent.count);
}

void SpillStore::release(std::span<const Extent> extents) {
  std::vector<Extent> free;
  int64_t units = 0;
  {
    MutexLock lock(held_mutex_);
    for (const Extent& extent : extents) {
      units += static_cast<int64_t>(extent.count);
      auto found = held_.find(extent.start);
      if (found == held_.end())
        free.push_back(extent);
      else
        found->second.dropped = true;
    }
  }
  allocator_.free(free);
  leaving_units_ -= units;
}

}  // namespace kvcachefs
