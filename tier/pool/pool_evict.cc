// Eviction of a pool. A clean entry loses its memory copy. A dirty one is spilled first where there is a
// disk, and discarded where there is none or where the disk cannot have it.
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "alloc/tree_name.h"
#include "base/clock.h"
#include "base/fault_point.h"
#include "base/log.h"
#include "tier/pool/pool.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kRoundNs = 5'000'000;  // other pools have their turn after this
constexpr uint64_t kOrderNs = 30'000'000'000;
// The order's caller finds the names gone, unless the kernel is busy in their directories all that time.
constexpr auto kTellingTime = std::chrono::milliseconds(1000);
constexpr auto kShortTellingTime = std::chrono::milliseconds(50);
constexpr auto kGrowPause = std::chrono::milliseconds(20);
constexpr auto kSpillPause = std::chrono::milliseconds(2);

}  // namespace

bool Pool::tidy() {
  publish_grown();
  parked_.retry(false);
  const bool writing = reservations_.follow_writers();
  const bool more = make_room();
  const bool more_inodes = make_inode_room();
  make_disk_room();
  return writing || more || more_inodes;
}

void Pool::publish_grown() {
  const uint64_t now_ms = now_coarse_ms();
  while (auto ino = entries_.next_grown(now_ms)) {
    EntryTable::Shard& shard = entries_.shard(*ino);
    MutexLock lock(shard.mutex);
    Entry* entry = shard.find(*ino);
    if (entry == nullptr || entry->stage != Entry::Stage::kFresh || entry->removed) continue;
    if (entry->reserved_end > 0 && entry->closed()) reservations_.give_back_holes(*entry);
    disk_.publish(*entry);
  }
}

// The caller asks before a search for a victim that may find none: entries that come back meanwhile are no
// reason to end the search.
bool Pool::more_to_come() {
  return disk_.backlog_bytes() > 0 || parked_.more_to_come();
}

bool Pool::make_room() {
  uint64_t pressure = capacity_.pressure_bytes();
  if (pressure == 0) {
    if (capacity_.room().wanted_bytes() > 0) capacity_.room().room_made();
    return false;
  }
  const uint64_t begun_ns = now_ns();
  Effort effort;
  EvictResult evicted;
  while (pressure > 0) {
    if (now_ns() - begun_ns > kRoundNs) return true;
    const bool writer_waits =
        capacity_.room().wanted_bytes(Room::Whose::kWriter) > 0 || capacity_.writer_outruns();
    effort.disk_is_busy = disk_.is_busy(pressure);
    // A waiting writer is worth more than entries that the disk cannot take, if those may be lost.
    if (effort.disk_is_busy && durability() == Durability::kNone && writer_waits)
      effort.even_unspilled = true;
    const bool more = more_to_come() || (disk() != nullptr && disk()->promoter.arriving_bytes() > 0);
    const Attempt attempt = evict_one(effort, evicted);
    if (attempt == Attempt::kSpilling && effort.disk_is_busy && !effort.even_unspilled) return true;
    if (attempt == Attempt::kNothing) {
      if (!effort.even_recent) {
        effort.even_recent = true;
        parked_.retry(true);
        continue;
      }
      if (more) return true;
      // Only a waiting writer is worth a client's temporary file.
      if (!effort.even_fresh && writer_waits) {
        effort.even_fresh = true;
        continue;
      }
      // Writers hear of it only after everything was tried: one that asks meanwhile must not take the end of
      // an easier round for that.
      capacity_.room().nothing_to_evict(effort.even_fresh ? Room::Whose::kWriter : Room::Whose::kPromotion);
      return false;
    }
    if (attempt == Attempt::kFreed && capacity_.room().wanted_bytes() > 0) capacity_.room().room_made();
    if (evicted.bytes >= pressure || evicted.entries % 16 == 0) {
      evicted.bytes = 0;
      pressure = capacity_.pressure_bytes();
    }
  }
  capacity_.room().room_made();
  return false;
}

Pool::Attempt Pool::evict_one(Effort effort, EvictResult& result) {
  const auto victim = entries_.next_victim(effort.even_fresh);
  if (!victim) return Attempt::kNothing;
  EntryTable::Shard& shard = entries_.shard(victim->ino);
  MutexLock lock(shard.mutex);
  Entry* entry = shard.find(victim->ino);
  if (entry == nullptr || entry->removed) return Attempt::kBusy;
  if (victim->fresh && (entry->stage != Entry::Stage::kFresh || entry->parked)) return Attempt::kBusy;
  if (!entry->evictable()) {
    entries_.park(*entry);
    return Attempt::kBusy;
  }
  if (keeps_for_disk(away(), *entry, durability())) {
    entries_.park(*entry);
    return Attempt::kBusy;
  }
  const auto age_ms = static_cast<uint32_t>(now_coarse_ms()) - entry->looked_up_ms;
  if (!effort.even_recent && age_ms < Parked::kRecentMs) {
    parked_.park(*entry, true);
    return Attempt::kBusy;
  }
  if (entry->tier == Entry::Tier::kClean) return drop_memory(shard, *entry, result);
  if (effort.clean_alone) {
    parked_.park(*entry, true);
    return Attempt::kBusy;
  }
  if (goes_to_disk_first(*entry, effort)) return Attempt::kSpilling;
  return discard(shard, *entry, result);
}

Pool::Attempt Pool::discard(EntryTable::Shard& shard, Entry& entry, EvictResult& result) {
  auto fd = arena_.open(handle_of(entry), O_RDONLY | O_NONBLOCK);
  // F_WRLCK on a read-only descriptor succeeds exactly when no other open or mapping of the file exists.
  const Tree::NamesLeft left = fd && sys::set_lease(fd->get(), F_WRLCK)
                                   ? tree_.remove_names(entry, fd->get(), Tree::kNamesAtOnce)
                                   : Tree::NamesLeft::kAll;
  if (left != Tree::NamesLeft::kNone) {
    // The other names go a little later: meanwhile other victims can go, and threads that wait for the shard
    // go on.
    if (left == Tree::NamesLeft::kFewer) entry.busy_tries = 0;
    parked_.park(entry, false);
    return Attempt::kBusy;
  }
  ++result.entries;
  result.bytes += entry.charged_bytes;
  tree_.gone(shard, entry, RemovalReason::kEvicted);
  return Attempt::kFreed;
}

EvictResult Pool::evict_now(EvictOrder order) {
  count(counters_.evict_orders);
  const uint64_t evictable = insight_.usage().evictable_bytes;
  uint64_t bytes = UINT64_MAX;
  uint64_t entries = UINT64_MAX;
  if (order.unit == EvictOrder::Unit::kPercent)
    bytes = evictable / 100 * order.amount + evictable % 100 * order.amount / 100;
  if (order.unit == EvictOrder::Unit::kBytes) bytes = order.amount;
  if (order.unit == EvictOrder::Unit::kEntries) entries = order.amount;
  parked_.retry(true);
  EvictResult result;
  Effort effort{.even_fresh = !order.patient, .even_recent = true};
  const uint64_t deadline_ns = now_ns() + kOrderNs;
  while (result.bytes < bytes && result.entries < entries && now_ns() < deadline_ns) {
    effort.disk_is_busy = disk_.is_busy(evictable);
    const bool more = more_to_come();
    if (evict_one(effort, result) != Attempt::kNothing) continue;
    if (order.patient && more) {
      std::this_thread::sleep_for(kSpillPause);
      parked_.retry(false);
      continue;
    }
    // A client may be about to rename what it has just closed: waiting out the second is better than taking
    // it away.
    if (!order.patient || !entries_.has_fresh()) break;
    std::this_thread::sleep_for(kGrowPause);
    publish_grown();
  }
  surroundings_.listener->wait_until_told(order.patient ? kTellingTime : kShortTellingTime);
  MutexLock lock(settings_mutex_);
  last_evict_ = result;
  return result;
}

EvictResult Pool::last_evict() const {
  MutexLock lock(settings_mutex_);
  return last_evict_;
}

}  // namespace kvcachefs
