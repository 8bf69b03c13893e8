// A pool's disk tier as a whole: attaching it, and which of its data is durable when.
#include <algorithm>
#include <cerrno>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/sys_disk.h"
#include "tier/pool/recovery.h"

namespace kvcachefs {
namespace {

// Two promoter lanes saturate most disks (checksums run at 10 GB/s a thread); four are for arrays.
constexpr unsigned kMaxLanes = 4;

}  // namespace

Result<void> Recovery::make_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                 uint64_t unit_bytes, const PoolOptions& spill) {
  if (disk_.tier() != nullptr) return fail(EEXIST, fmt::format("pool {} has a disk tier", name_));
  auto channel = device->channel(Spiller::kDepth);
  if (!channel) return pass(channel);
  auto scrub_channel = device->channel(Scrubber::kDepth);
  if (!scrub_channel) return pass(scrub_channel);
  auto store = std::make_unique<SpillStore>(std::move(device), std::move(catalog), unit_bytes, counters_);
  auto tier = std::make_unique<DiskTier>(std::move(store), std::move(*channel), std::move(*scrub_channel),
                                         parts_.residency, arena_, spill, is_supervised());
  for (unsigned lane = 0; lane < std::clamp(surroundings_.cores / 2, 1u, kMaxLanes); ++lane) {
    auto lane_channel = tier->store->device().channel(PromoterLane::kDepth);
    if (!lane_channel) return pass(lane_channel);
    tier->lanes.push_back(std::make_unique<PromoterLane>(tier->promoter, std::move(*lane_channel)));
    tier->promoter.add(*tier->lanes.back());
  }
  disk_.own(std::move(tier));
  return {};
}

Result<void> Recovery::attach_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                   uint64_t unit_bytes, const PoolOptions& spill) {
  if (auto made = make_disk(std::move(device), std::move(catalog), unit_bytes, spill); !made) return made;
  // Until the restore is done, an open finds a restored entry gone (begin_open), and its rename or removal
  // gets EBUSY. Taking each shard once waits out every thread that entered before restoring_ was set.
  disk_.set_restoring(true);
  const bool served = parts_.inodes.root_is_known();
  for (EntryTable::Shard& shard : entries_.shards()) MutexLock lock(shard.mutex);
  auto restored = begin_restoring(spill);
  if (restored) restored = restore(*disk_.owned(), {});
  if (!restored) {
    disk_.own(nullptr);
    parts_.settings.name_disk({});
    (void)surroundings_.options_changed();
    (void)put_restoring(arena_.tree_fd(), false);
    disk_.end_restoring();
    return restored;
  }
  if (served) tell_names();
  use_disk(spill);
  for (const uint64_t ino : disk_.end_restoring()) parts_.tree.tell_catalog(ino);
  parts_.disk_requests.spill_all();
  return {};
}

Result<void> Recovery::attach_adopted_disk(std::unique_ptr<BlockDevice> device,
                                           std::unique_ptr<Catalog> catalog, uint64_t unit_bytes,
                                           const PoolOptions& spill) {
  if (auto made = make_disk(std::move(device), std::move(catalog), unit_bytes, spill); !made) return made;
  const bool unfinished = is_restoring(arena_.tree_fd());
  auto there = reconcile(*disk_.owned(), unfinished);
  Result<void> agreed = there ? Result<void>() : pass(there);
  if (agreed && unfinished) agreed = restore(*disk_.owned(), *there);
  if (!agreed) {
    disk_.own(nullptr);
    return agreed;
  }
  use_disk(spill);
  tell_names();
  parts_.disk_requests.spill_all();
  return {};
}

void Recovery::tell_names() {
  if (const auto told = disk_.tell_names(true); !told)
    log_warning(
        "pool {}: not all names could be told to the catalog ({}): an fsync of the pool's root tries again",
        name_, sys::error_text(told.error().code));
}

// A successor must know of the tier before the first name appears that only the disk has content for. Until
// all names are back it must also know that the missing ones were not removed.
Result<void> Recovery::begin_restoring(const PoolOptions& spill) {
  if (!is_supervised()) return {};
  if (auto put = put_restoring(arena_.tree_fd(), true); !put) return put;
  parts_.settings.name_disk(spill);
  auto written = surroundings_.options_changed();
  fault_point("disk tier named");
  return written;
}

void Recovery::use_disk(const PoolOptions& spill) {
  parts_.settings.use_disk(spill);
  fault_point("all restored");
  // A successor that takes the restore for unfinished would bring back what is removed from here on.
  if (is_supervised() && !put_restoring(arena_.tree_fd(), false))
    surroundings_.survivors->children().forbid_succession();
  disk_.use();
}

}  // namespace kvcachefs
