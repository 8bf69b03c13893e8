// A pool's disk tier as a whole: attaching it, and which of its data is durable when.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/progress.h"
#include "tier/children.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

// Two promoter lanes saturate most disks (checksums run at 10 GB/s a thread); four are for arrays.
constexpr unsigned kMaxLanes = 4;

}  // namespace

Result<void> Pool::make_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                             uint64_t unit_bytes, const PoolOptions& spill) {
  if (disk() != nullptr) return fail(EEXIST, fmt::format("pool {} has a disk tier", name_));
  auto channel = device->channel(Spiller::kDepth);
  if (!channel) return pass(channel);
  auto scrub_channel = device->channel(Scrubber::kDepth);
  if (!scrub_channel) return pass(scrub_channel);
  auto store = std::make_unique<SpillStore>(std::move(device), std::move(catalog), unit_bytes, counters_);
  const uint64_t store_units = store->space().units();
  auto tier = std::make_unique<DiskTier>(std::move(store), std::move(*channel), std::move(*scrub_channel),
                                         residency_, arena_, spill, is_supervised());
  for (unsigned lane = 0; lane < std::clamp(surroundings_.cores / 2, 1u, kMaxLanes); ++lane) {
    auto lane_channel = tier->store->device().channel(PromoterLane::kDepth);
    if (!lane_channel) return pass(lane_channel);
    tier->lanes.push_back(std::make_unique<PromoterLane>(tier->promoter, std::move(*lane_channel)));
    tier->promoter.add(*tier->lanes.back());
  }
  // A cold entry's inode takes 1 KiB of kernel memory (docs/facts.md "An empty inode takes 1 KiB"), and the
  // entry takes at least one unit of the disk.
  if (auto allowed = arena_.allow_inodes(store_units); !allowed) return allowed;
  disk_.own(std::move(tier));
  return {};
}

Result<void> Pool::attach_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                               uint64_t unit_bytes, const PoolOptions& spill) {
  if (auto made = make_disk(std::move(device), std::move(catalog), unit_bytes, spill); !made) return made;
  // Until the restore is done, an open finds a restored entry gone (begin_open), and its rename or removal
  // gets EBUSY. Taking each shard once waits out every thread that entered before restoring_ was set.
  disk_.set_restoring(true);
  const bool served = inodes_.root_is_known();
  for (size_t index = 0; index < EntryTable::kShards; ++index) MutexLock lock(entries_.shard_at(index).mutex);
  auto restored = begin_restoring(spill);
  if (restored) restored = restore(*disk_.owned(), {});
  if (!restored) {
    disk_.own(nullptr);
    name_disk({});
    (void)surroundings_.options_changed();
    (void)put_restoring(arena_.tree_fd(), false);
    disk_.end_restoring();
    return restored;
  }
  if (served) disk_.tell_names(true);
  use_disk(spill);
  for (const uint64_t ino : disk_.end_restoring()) tree_.attributes_changed(ino);
  disk_requests_.spill_all();
  return {};
}

Result<void> Pool::attach_adopted_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                       uint64_t unit_bytes, const PoolOptions& spill) {
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
  disk_.tell_names(true);
  disk_requests_.spill_all();
  return {};
}

// A successor must know of the tier before the first name appears that only the disk has content for. Until
// all names are back it must also know that the missing ones were not removed.
Result<void> Pool::begin_restoring(const PoolOptions& spill) {
  if (!is_supervised()) return {};
  if (auto put = put_restoring(arena_.tree_fd(), true); !put) return put;
  name_disk(spill);
  auto written = surroundings_.options_changed();
  fault_point("disk tier named");
  return written;
}

void Pool::name_disk(const PoolOptions& spill) {
  MutexLock lock(settings_mutex_);
  options_.spill_path = spill.spill_path;
  options_.spill_size_bytes = spill.spill_size_bytes;
  options_.spill_unit_bytes =
      disk_.owned() != nullptr ? disk_.owned()->store->unit_bytes() : spill.spill_unit_bytes;
  options_.catalog_path = spill.catalog_path;
  options_.durability = spill.durability;
  options_.admission = spill.admission;
  options_.prefetch = spill.prefetch;
}

void Pool::use_disk(const PoolOptions& spill) {
  (void)disk_.exchange_durability(durability_of(spill));
  prefetcher_.set_auto(spill.prefetch);
  name_disk(spill);
  fault_point("all restored");
  // A successor that takes the restore for unfinished would bring back what is removed from here on.
  if (is_supervised() && !put_restoring(arena_.tree_fd(), false))
    surroundings_.survivors->children().forbid_succession();
  disk_.use();
}

Result<void> Pool::set_durability(Durability durability) {
  if (disk() == nullptr) return refuse_without_disk(away(), name_);
  {
    MutexLock lock(settings_mutex_);
    options_.durability = durability;
  }
  // Without durability the catalog has not been told of inodes without content.
  if (disk_.exchange_durability(durability) == Durability::kNone && durability != Durability::kNone)
    disk_.tell_names(false);
  disk_requests_.spill_all();
  return {};
}

Result<void> Pool::set_admission(Admission admission) {
  if (disk() == nullptr) return refuse_without_disk(away(), name_);
  disk()->admission.set_kind(admission);
  MutexLock lock(settings_mutex_);
  options_.admission = admission;
  return {};
}

Result<void> Pool::set_auto_prefetch(bool on) {
  prefetcher_.set_auto(on);
  MutexLock lock(settings_mutex_);
  options_.prefetch = on;
  return {};
}

}  // namespace kvcachefs
