// A pool's disk tier as a whole: attaching it, and which of its data is durable when.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fault_point.h"
#include "base/log.h"
#include "base/size.h"
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
  const bool served = parts_.inodes.root_is_known();
  auto restored = begin_restoring(spill);
  if (restored) restored = restore(*disk_.owned(), {});
  if (!restored) {
    undo_attaching();
    return restored;
  }
  if (served) tell_names();
  use_disk(spill);
  for (const uint64_t ino : disk_.end_restoring()) parts_.tree.tell_catalog(ino);
  parts_.disk_requests.spill_all();
  return {};
}

Result<void> Recovery::take_disk(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                 uint64_t unit_bytes, const PoolOptions& spill) {
  return make_disk(std::move(device), std::move(catalog), unit_bytes, spill);
}

Result<void> Recovery::attach_adopted_disk(std::unique_ptr<BlockDevice> device,
                                           std::unique_ptr<Catalog> catalog, uint64_t unit_bytes,
                                           const PoolOptions& spill) {
  auto begun = take_disk(std::move(device), std::move(catalog), unit_bytes, spill);
  if (begun) begun = begin_attaching_adopted(spill);
  return begun && pending_ ? bring_back([] {}) : begun;
}

Result<void> Recovery::begin_attaching(std::unique_ptr<BlockDevice> device, std::unique_ptr<Catalog> catalog,
                                       uint64_t unit_bytes, const PoolOptions& spill) {
  if (auto made = make_disk(std::move(device), std::move(catalog), unit_bytes, spill); !made) return made;
  auto begun = has_room_for_names();
  if (begun) begun = begin_restoring(spill);
  if (!begun) {
    undo_attaching();
    return begun;
  }
  pending_ = Pending{.spill = spill, .there = {}, .mark = {}, .is_adopted = false};
  return {};
}

Result<void> Recovery::begin_attaching_adopted(const PoolOptions& spill) {
  auto mark = restoring_mark_of(arena_.tree_fd());
  auto there = reconcile(*disk_.owned(), mark);
  if (!there) {
    disk_.drop();
    return pass(there);
  }
  if (mark) {
    disk_.set_restoring(true);
    pending_ =
        Pending{.spill = spill, .there = std::move(*there), .mark = std::move(*mark), .is_adopted = true};
    return {};
  }
  use_disk(spill);
  promote_pinned();
  tell_names();
  parts_.disk_requests.spill_all();
  return {};
}

// Before the tier is in use nothing is promoted.
void Recovery::promote_pinned() {
  for (const uint64_t ino : std::exchange(cold_pinned_, {}))
    (void)disk_.tier()->promoter.request(ino, Promoter::kOpenPriority - 1);
}

Result<void> Recovery::bring_back(const std::function<void()>& in_use) {
  const Pending pending = std::move(*pending_);
  pending_.reset();
  bool is_used = false;
  auto restored = restore(*disk_.owned(), pending.there, pending.mark, [&] {
    parts_.settings.use_disk(pending.spill);
    disk_.use();
    promote_pinned();
    is_used = true;
    in_use();
  });
  if (!restored && given_up_) return restored;
  if (!restored && is_used) {
    // A successor tries again from where this process has come to.
    disk_.tier()->store->log().stop_for_good(restored.error().message.c_str());
    (void)disk_.end_restoring();
    return restored;
  }
  if (!restored && pending.is_adopted) {
    disk_.drop();
    return go_on_without_disk(pending.spill, restored.error());
  }
  if (!restored) {
    undo_attaching();
    return restored;
  }
  all_are_back();
  disk_.set_spills_are_asked_for(true);
  for (const uint64_t ino : disk_.end_restoring()) parts_.tree.tell_catalog(ino);
  if (pending.is_adopted) tell_names();
  parts_.disk_requests.spill_all();
  disk_.set_spills_are_asked_for(false);
  return {};
}

void Recovery::undo_attaching() {
  disk_.own(nullptr);
  parts_.settings.name_disk({});
  (void)surroundings_.options_changed();
  (void)put_restored(arena_.tree_fd());
  (void)disk_.end_restoring();
}

std::string Recovery::too_small(uint64_t inodes) {
  return fmt::format("the size that the pool has now is not enough for its entries' names, which need {}",
                     format_size_exact(least_size_for_inodes(inodes)));
}

// A client's files may fill the pool meanwhile, and then what finds no place is dropped. But a pool that is
// too small from the beginning would lose what its disk has for a mistake in its options. What their
// xattrs take is left out, so that a pool that was full starts again.
Result<void> Recovery::has_room_for_names() {
  auto names = disk_.owned()->store->catalog().names();
  if (!names) return pass(names);
  const ArenaUsage now = arena_.usage();
  if (*names <= now.free_inodes) return {};
  return fail(ENOSPC, fmt::format("pool {}: what its catalog has cannot be restored: {}", name_,
                                  too_small(now.used_inodes() + *names)));
}

void Recovery::tell_names() {
  if (const auto told = disk_.tell_names(true); !told)
    log_warning(
        "pool {}: not all names could be told to the catalog ({}): an fsync of the pool's root tries again",
        name_, sys::error_text(told.error().code));
}

// Until the restore is done, an open finds a restored entry gone (begin_open) if the tier is not in use, and
// its rename or removal gets EBUSY. Taking each shard once waits out every thread that entered before that.
// A successor must know of the tier before the first name appears that only the disk has content for. Until
// all names are back it must also know that the missing ones were not removed.
Result<void> Recovery::begin_restoring(const PoolOptions& spill) {
  disk_.set_restoring(true);
  for (EntryTable::Shard& shard : entries_.shards()) MutexLock lock(shard.mutex);
  if (!is_supervised()) return {};
  if (auto put = put_restoring(arena_.tree_fd(), 0); !put) return put;
  parts_.settings.name_disk(spill);
  auto written = surroundings_.options_changed();
  fault_point("disk tier named");
  return written;
}

void Recovery::use_disk(const PoolOptions& spill) {
  parts_.settings.use_disk(spill);
  all_are_back();
  disk_.use();
}

void Recovery::all_are_back() {
  fault_point("all restored");
  // A successor that takes the restore for unfinished would bring back what is removed from here on.
  const bool is_known = disk_.changed_names().end().has_value();
  if (is_supervised() && !(is_known && put_restored(arena_.tree_fd())))
    surroundings_.survivors->children().forbid_succession();
}

}  // namespace kvcachefs
