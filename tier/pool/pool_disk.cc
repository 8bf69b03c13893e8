#include "tier/pool/pool_disk.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/fault_point.h"
#include "tier/children.h"

namespace kvcachefs {
namespace {

// The pressure decides how many bytes may be on their way to the disk for the sake of room, between these two
// limits. More would only make the oldest wait longer.
constexpr uint64_t kSpillAheadBytes = uint64_t{64} << 20;
constexpr uint64_t kSpillAheadMostBytes = uint64_t{256} << 20;

}  // namespace

Durability PoolDisk::exchange_durability(Durability durability) {
  capacity_.set_durability(durability);
  return durability_.exchange(durability);
}

Result<DiskTier*> PoolDisk::needed() const {
  if (DiskTier* const its = tier()) return its;
  if (away() != nullptr) return fail(EIO, fmt::format("pool {}: its disk is away", name_));
  return fail(EOPNOTSUPP, fmt::format("pool {} has no disk tier", name_));
}

Presence PoolDisk::presence_of_cold() const {
  if (tier() != nullptr) return Presence::kCold;
  if (away() == nullptr) return Presence::kGone;
  return away()->may_be_waited_for() ? Presence::kCold : Presence::kAway;
}

bool PoolDisk::takes_more() const {
  return tier() != nullptr && !restoring() && !tier()->store->log().frozen();
}

// The limit is at most half of the pool: what the spiller has queued can leave only by the disk, which may
// stand still. The caller asks before each try, because each entry more in a full queue is one more that
// cannot be discarded.
bool PoolDisk::is_busy(uint64_t pressure_bytes) const {
  const uint64_t ahead = std::clamp(pressure_bytes, kSpillAheadBytes, kSpillAheadMostBytes);
  return backlog_bytes() >= std::min(ahead, capacity_.size_bytes() / 2);
}

void PoolDisk::publish(Entry& entry) {
  entries_.published(entry);
  spill_by_itself(entry);
}

void PoolDisk::spill_by_itself(Entry& entry) {
  if (durability() != Durability::kNone) queue_spill(entry);
}

bool PoolDisk::is_admitted(Entry& entry) {
  // An entry that the catalog has was admitted before, or an fsync has promised to keep it.
  return entry.disk.node_id != 0 || tier()->admission.admit(entry.disk.name_hash, entry.hits);
}

bool PoolDisk::wants_spill(const Entry& entry, bool again) const {
  return takes_more() && entry.is_settled() && entry.tier == Entry::Tier::kDirty &&
         (again || !entry.disk.spill_queued()) && !entry.disk.is_unspillable();
}

void PoolDisk::queue_spill(Entry& entry, bool urgent, bool again) {
  using Spill = DiskFacts::Spill;
  if (!urgent && (!wants_spill(entry, again) || !is_admitted(entry))) return;
  if (!urgent) count(counters_.admitted_bytes, entry.memory.charged_bytes);
  entries_.contents().spill_asked(entry,
                                  urgent || entry.disk.spill_urgent() ? Spill::kUrgent : Spill::kQueued);
  tier()->spiller.request(entry.policy.ino, entry.memory.charged_bytes, urgent);
}

Result<void> PoolDisk::tell_names(bool with_links) {
  CatalogNames& names = owned_->names;
  return walk_tree(arena_, [&](int directory, uint64_t, const Child& child) {
    // An fsync of the pool may make a server thread look at every name.
    surroundings_.still_at_it();
    fault_point("looked at a name");
    if (!child.is_regular) return names.keep(directory, child.name);
    if (!with_links) return;
    const LockedEntry entry(entries_.shard(child.ino), child.ino);
    if (entry == nullptr || entry->disk.node_id != 0) return;
    auto attributes = sys::stat_at(directory, child.name.c_str());
    if (attributes && attributes->st_ino == child.ino && attributes->st_nlink > 1)
      names.has_link(*entry, directory, child.name);
  });
}

void PoolDisk::want_room(uint64_t bytes) {
  uint64_t wanted = wanted_bytes_.load();
  while (wanted < bytes && !wanted_bytes_.compare_exchange_weak(wanted, bytes)) {
  }
  surroundings_.evictor->wake();
}

void PoolDisk::use() {
  entries_.observe(*owned_);
  entries_.shares().set_disk(owned_->store->space().units(), owned_->store->unit_bytes());
  tier_.store(owned_.get());
}

void PoolDisk::drop() {
  before_use_.withdraw();
  owned_.reset();
}

}  // namespace kvcachefs
