#include "tier/pool/evictor.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "base/fault_point.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kRoundNs = 5'000'000;  // other pools have their turn after this
constexpr uint64_t kOrderNs = 30'000'000'000;
// The order's caller finds the names gone, unless the kernel is busy in their directories all that time.
constexpr auto kTellingTime = std::chrono::milliseconds(1000);
constexpr auto kShortTellingTime = std::chrono::milliseconds(50);
constexpr int kHeldARound = 8;
constexpr uint64_t kOverPatienceMs = 100;  // more than the pauses of a victim in use (tier/entries/parked.cc)
constexpr auto kGrowPause = std::chrono::milliseconds(20);
constexpr auto kSpillPause = std::chrono::milliseconds(2);

}  // namespace

// True if an effort of this kind may find a victim for a waiting writer.
bool Evictor::waits_in(const Room& room, bool over_alone) {
  return room.wanted_bytes(Room::Whose::kWriter) > 0 ||
         (over_alone && room.wanted_bytes(Room::Whose::kOver) > 0);
}

bool Evictor::tidy() {
  publish_grown();
  parked_.retry(false);
  const bool writing = reservations_.follow_writers();
  const bool more = make_room();
  const bool more_inodes = make_inode_room();
  const bool more_places = keep_entry_limit();
  const bool more_followers = evict_followers();
  const bool more_expired = remove_expired();
  make_disk_room();
  look_at_held();
  const bool seeking = arena_.deep_names().step(arena_);
  return writing || more || more_inodes || more_places || more_followers || more_expired || seeking;
}

void Evictor::publish_grown() {
  const uint64_t now_ms = now_coarse_ms();
  while (auto ino = entries_.candidates().next_grown(now_ms)) {
    const LockedEntry entry(entries_.shard(*ino), *ino);
    if (entry == nullptr || entry->stage != Entry::Stage::kFresh || entry->removed) continue;
    if (entry->memory.reserved_end > 0 && entry->closed()) reservations_.give_back_holes(*entry);
    disk_.publish(*entry);
  }
}

// A mapping ends without any sign. A look takes 5 us, and a round looks at a few.
void Evictor::look_at_held() {
  for (int looks = 0; looks < kHeldARound; ++looks) {
    const auto ino = parked_.next_held();
    if (!ino) return;
    const LockedEntry entry(entries_.shard(*ino), *ino);
    if (entry == nullptr || !entry->memory.held) continue;
    entries_.contents().held(*entry, false);
    if (!entry->closed() || entry->tier == Entry::Tier::kCold) continue;
    const auto fd = arena_.open(handle_of(*entry), O_RDONLY | O_NONBLOCK);
    if (fd && sys::set_lease(fd->get(), F_WRLCK)) continue;
    if (fd) see_charged(*entry, fd->get());
    parked_.held(*entry);
  }
}

// A mapping may fill the holes of a closed file.
void Evictor::see_charged(Entry& entry, int fd) {
  if (const auto now = sys::stat_of(fd)) entries_.contents().charged(entry, allocated_bytes_of(*now));
}

// To be called before a search for a victim, not after one that found none: an entry that came back during
// the search would not count any more, and the caller would give up too early.
bool Evictor::more_to_come() {
  return disk_.backlog_bytes() > 0 || parked_.more_to_come() || arena_.deep_names().seeks() ||
         surroundings_.listener->is_behind(number_);
}

uint64_t Evictor::orders_ended() const {
  return disk_.tier() != nullptr ? disk_.tier()->promoter.orders_ended() : 0;
}

bool Evictor::awaits_over() {
  if (surroundings_.listener->is_behind(number_)) return true;
  const Owners over = entries_.shares().over();
  if (!parked_.more_to_come(over) && disk_.backlog_bytes() == 0) return false;
  const uint64_t now_ms = now_coarse_ms();
  if (awaits_over_since_ms_ == 0) awaits_over_since_ms_ = now_ms;
  return now_ms - awaits_over_since_ms_ < kOverPatienceMs;
}

Evictor::Next Evictor::after_nothing(Effort& effort, bool writer_waits, bool more) {
  if (!effort.even_recent) {
    effort.even_recent = true;
    parked_.retry(true);
    return Next::kHarder;
  }
  if (effort.over_alone ? awaits_over() : more) return Next::kLater;
  // Only a waiting writer is worth a client's temporary file.
  if (!effort.even_fresh && writer_waits) {
    effort.even_fresh = true;
    return Next::kHarder;
  }
  if (!effort.over_alone) return Next::kEnd;
  effort = {};
  return Next::kHarder;
}

bool Evictor::make_room() {
  Room& room = capacity_.room();
  uint64_t ended = orders_ended();
  uint64_t pressure = capacity_.pressure_bytes();
  if (pressure == 0) {
    awaits_over_since_ms_ = 0;
    if (room.wanted_bytes() > 0) room.room_made();
    return false;
  }
  const uint64_t begun_ns = now_ns();
  const bool any_over = entries_.shares().over().any();
  Effort effort{.over_alone = any_over};
  EvictResult evicted;
  while (pressure > 0) {
    if (now_ns() - begun_ns > kRoundNs) return true;
    const bool even_over = effort.over_alone || !any_over;
    if (const uint64_t before = std::exchange(ended, orders_ended()); before != ended) {
      pressure = capacity_.pressure_bytes(even_over);
      continue;
    }
    effort.orders_ended = ended;
    const bool outruns = capacity_.writer_outruns(even_over);
    const bool writer_waits = waits_in(room, effort.over_alone) || outruns;
    effort.disk_is_busy = disk_.is_busy(pressure);
    // Ordered entries are not evicted for an order or an open, because both can do without memory.
    effort.spares_ordered = !writer_waits && capacity_.leaving_bytes() == 0;
    // A waiting writer, or a host that is short of memory, is worth more than entries that the disk cannot
    // take, if those may be lost.
    if (effort.disk_is_busy && disk_.durability() == Durability::kNone &&
        (writer_waits || capacity_.leaving_bytes() > 0))
      effort.even_unspilled = true;
    // A victim in use is tried again for up to 85 ms. That is too long while a writer with passthrough may
    // meet the end of the memory.
    const bool more = disk_.backlog_bytes() > 0 || (parked_.more_to_come() && !outruns) ||
                      (disk_.tier() != nullptr && disk_.tier()->promoter.arriving_bytes() > 0) ||
                      (disk_.holds_spills() && disk_.durability() != Durability::kNone) ||
                      arena_.deep_names().seeks() || surroundings_.listener->is_behind(number_);
    const Attempt attempt = evict_one(effort, evicted);
    if (attempt == Attempt::kSpilling && effort.disk_is_busy && !effort.even_unspilled) return true;
    if (attempt == Attempt::kNothing) {
      const bool was_fresh = effort.even_fresh, was_over = effort.over_alone;
      const Next next = after_nothing(effort, writer_waits, more);
      if (next == Next::kLater) return true;
      // Writers are told that there is no room only after fresh entries were tried too. Before that only
      // promotions are told.
      if (next == Next::kEnd) {
        room.nothing_to_evict(was_fresh ? Room::Whose::kWriter : Room::Whose::kPromotion);
        return false;
      }
      if (!was_over || effort.over_alone) continue;
      room.nothing_to_evict(Room::Whose::kOver);
      pressure = capacity_.pressure_bytes(false);
      if (pressure > 0) continue;
      if (room.wanted_bytes() > room.wanted_bytes(Room::Whose::kOver)) room.room_made();
      return false;
    }
    if (attempt == Attempt::kFreed && effort.over_alone) awaits_over_since_ms_ = 0;
    if (attempt == Attempt::kFreed && room.wanted_bytes() > 0) room.room_made();
    if (evicted.bytes >= pressure || evicted.entries % 16 == 0) {
      evicted.bytes = 0;
      pressure = capacity_.pressure_bytes(even_over);
    }
  }
  room.room_made();
  return false;
}

Evictor::Attempt Evictor::evict_one(Effort effort, EvictResult& result) {
  if (surroundings_.listener->is_behind(number_)) return Attempt::kNothing;
  if (const auto followed = evict_follower(effort, result)) return *followed;
  const Owners over = entries_.shares().over();
  std::optional<Candidates::Victim> victim;
  if (over.any()) victim = entries_.candidates().next_victim(effort.even_fresh, over);
  if (!victim && !effort.over_alone) victim = entries_.candidates().next_victim(effort.even_fresh);
  if (!victim) return Attempt::kNothing;
  const uint64_t leaf = first_to_leave(victim->ino);
  const bool is_needed = leaf != victim->ino;
  if (const Attempt left = is_needed ? evict_leaf(leaf, effort, result) : Attempt::kNothing;
      left != Attempt::kNothing) {
    give_back(victim->ino, left);
    return left;
  }
  const auto evict = [&](bool stays_if_needed) {
    EntryTable::Shard& shard = entries_.shard(victim->ino);
    const LockedEntry entry(shard, victim->ino);
    if (entry == nullptr || entry->removed) return Attempt::kBusy;
    if (victim->fresh && (entry->stage != Entry::Stage::kFresh || entry->parked)) return Attempt::kBusy;
    return evict_entry(shard, *entry, effort, stays_if_needed, result);
  };
  const Attempt attempt = evict(is_needed);
  if (attempt != Attempt::kNeeded) return attempt;
  if (remove_with_another(leaf, RemovalReason::kEvicted, result) != Attempt::kFreed) return evict(false);
  give_back(victim->ino, Attempt::kFreed);
  return Attempt::kFreed;
}

Evictor::Attempt Evictor::evict_entry(EntryTable::Shard& shard, Entry& entry, Effort effort, bool is_needed,
                                      EvictResult& result) {
  const bool lacks_copy = disk_.tier() != nullptr && disk_.tier()->store->log().has_lost(entry.disk.node_id);
  if (!entry.evictable() || lacks_copy || keeps_for_disk(disk_.away(), entry, disk_.durability())) {
    entries_.park(entry);
    return Attempt::kBusy;
  }
  const bool clean = entry.tier == Entry::Tier::kClean;
  const auto age_ms = static_cast<uint32_t>(now_coarse_ms()) - entry.kernel.looked_up_ms;
  const bool is_spared =
      effort.spares_ordered && disk_.tier() != nullptr &&
      (disk_.tier()->promoter.is_ordered(entry.policy.ino) || orders_ended() != effort.orders_ended);
  if (is_spared || (!effort.even_recent && age_ms < Parked::kRecentMs) || (effort.clean_alone && !clean)) {
    parked_.park(entry, true);
    return Attempt::kBusy;
  }
  if (!clean && goes_to_disk_first(entry, effort)) return Attempt::kSpilling;
  if (!clean && is_needed) return Attempt::kNeeded;
  const auto group = index_.groups().of(entry.policy.ino);
  const Attempt attempt =
      clean ? drop_memory(entry, result) : discard(shard, entry, RemovalReason::kEvicted, result);
  if (attempt == Attempt::kFreed && group != nullptr) others_follow(group, !clean);
  return attempt;
}

bool Evictor::goes_to_disk_first(Entry& entry, Effort effort) {
  if (disk_.tier() == nullptr) return false;
  const bool promised = disk_.durability() != Durability::kNone || entry.disk.node_id != 0;
  if (entry.disk.spill_urgent()) {  // a waiter wants to hear that it is durable
    entries_.park(entry);
    return true;
  }
  if (!disk_.takes_more()) {
    // The disk gets the entry when the pool starts again, or when all names are back; without durability that
    // is not by itself.
    if (promised && disk_.restoring() && disk_.durability() == Durability::kNone)
      parked_.park(entry, true);
    else if (promised)
      entries_.park(entry);
    return promised;
  }
  if (entry.disk.is_unspillable()) return false;
  if (!entry.disk.spill_queued() && !disk_.is_admitted(entry)) {
    count(counters_.refused_bytes, entry.memory.charged_bytes);
    return false;
  }
  if (effort.even_unspilled && !promised) {
    count(counters_.overrun_discards);
    return false;
  }
  if (effort.disk_is_busy && !entry.disk.spill_queued() && !promised) {
    parked_.park(entry, true);
    return true;
  }
  entries_.park(entry);
  disk_.queue_spill(entry);
  return true;
}

Evictor::Attempt Evictor::discard(EntryTable::Shard& shard, Entry& entry, RemovalReason reason,
                                  EvictResult& result) {
  auto fd = arena_.open(handle_of(entry), O_RDONLY | O_NONBLOCK);
  // F_WRLCK on a read-only descriptor succeeds exactly when no other open or mapping of the file exists.
  const bool free = fd && sys::set_lease(fd->get(), F_WRLCK);
  if (!free) {
    if (fd) see_charged(entry, fd->get());
    parked_.held(entry);
  }
  const Tree::NamesLeft left =
      free ? tree_.remove_names(entry, fd->get(), Tree::kNamesAtOnce) : Tree::NamesLeft::kAll;
  if (left != Tree::NamesLeft::kNone) {
    // The other names go a little later: meanwhile other victims can go, and threads that wait for the shard
    // go on. One whose name is sought can go as soon as that is found.
    const bool is_sought = free && left == Tree::NamesLeft::kAll && arena_.deep_names().seeks();
    parked_.park(entry, is_sought, left == Tree::NamesLeft::kFewer);
    return Attempt::kBusy;
  }
  ++result.entries;
  result.bytes += entry.memory.charged_bytes;
  tree_.gone(shard, entry, reason);
  return Attempt::kFreed;
}

Evictor::Attempt Evictor::drop_memory(Entry& entry, EvictResult& result) {
  const LoggedWork work(surroundings_.read_log());
  auto fd = arena_.open(handle_of(entry), O_RDWR | O_NONBLOCK);
  // F_WRLCK succeeds exactly when no other open or mapping of the file exists, and none can begin while it is
  // held.
  if (!fd || !sys::set_lease(fd->get(), F_WRLCK)) {
    parked_.held(entry);
    parked_.park(entry, false);
    return Attempt::kBusy;
  }
  const UnseenChange unseen(entry.kept, fd->get(), is_supervised());
  // The mark goes first: a half-punched file must not pass for resident.
  const CatalogContent* const copy = entry.disk.copy();
  KVCACHEFS_CHECK(copy != nullptr);
  const bool marked = marks_.mark_copy(entry, fd->get(), CopyMark::State::kCold, copy).has_value();
  fault_point("marked cold");
  if (!marked || !arena_.drop_pages(fd->get())) {
    // The pages are still there: the mark says so again.
    if (marked) (void)marks_.mark_copy(entry, fd->get(), CopyMark::State::kClean, copy);
    parked_.park(entry, false);
    return Attempt::kBusy;
  }
  fault_point("pages dropped");
  ++result.entries;
  result.bytes += entry.memory.charged_bytes;
  entries_.contents().evicted(entry);
  work.done(AccessRecord::Event::kEvict, number_, entry);
  return Attempt::kFreed;
}

EvictResult Evictor::evict_now(EvictOrder order) {
  count(counters_.evict_orders);
  const uint64_t evictable = entries_.sums().evictable_bytes(true);
  uint64_t bytes = UINT64_MAX;
  uint64_t entries = UINT64_MAX;
  if (order.unit == EvictOrder::Unit::kPercent) bytes = percent_of(evictable, order.amount);
  if (order.unit == EvictOrder::Unit::kBytes) bytes = order.amount;
  if (order.unit == EvictOrder::Unit::kEntries) entries = order.amount;
  parked_.retry(true);
  EvictResult result;
  Effort effort{.even_fresh = !order.patient, .even_recent = true};
  const uint64_t deadline_ns = now_ns() + kOrderNs;
  bool seeks = false;
  while (result.bytes < bytes && result.entries < entries && now_ns() < deadline_ns) {
    effort.disk_is_busy = disk_.is_busy(evictable);
    const bool more = more_to_come();
    if (evict_one(effort, result) != Attempt::kNothing) continue;
    if (order.patient && more) {
      seeks |= arena_.deep_names().seeks();
      std::this_thread::sleep_for(kSpillPause);
      parked_.retry(false);
      continue;
    }
    if (std::exchange(seeks, false)) {  // what was found can go now
      parked_.retry(true);
      continue;
    }
    // A client may be about to rename what it has just closed: waiting out the second is better than taking
    // it away.
    if (!order.patient || !entries_.candidates().has_fresh()) break;
    std::this_thread::sleep_for(kGrowPause);
    publish_grown();
  }
  surroundings_.listener->wait_until_told(order.patient ? kTellingTime : kShortTellingTime);
  MutexLock lock(last_mutex_);
  last_evict_ = result;
  return result;
}

EvictResult Evictor::last_evict() const {
  MutexLock lock(last_mutex_);
  return last_evict_;
}

EvictResult Evictor::shrink_to(uint64_t size_bytes, uint64_t deadline_ns) {
  EvictResult evicted;
  while (arena_.usage().used_bytes() > size_bytes) {
    const bool more = more_to_come();
    const Attempt attempt = evict_one({.even_fresh = true, .even_recent = true}, evicted);
    if (attempt == Attempt::kNothing && more && now_ns() < deadline_ns) {
      std::this_thread::sleep_for(kSpillPause);
      parked_.retry(false);
      continue;
    }
    if (attempt == Attempt::kNothing || now_ns() > deadline_ns) break;
  }
  return evicted;
}

}  // namespace kvcachefs
