// The evictor where an entry does not leave for itself: with the others of its group, before those without
// which it is of no use, or because it has expired.
#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "tier/pool/evictor.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kFollowersTurnNs = 2'000'000;
constexpr uint64_t kAgainMs = 1000;  // an expired entry that is in use is tried again after this

}  // namespace

uint64_t Evictor::first_to_leave(uint64_t victim) {
  return leaf_first_ ? index_.leaf_below(victim) : victim;
}

// Returns kNothing if the leaf is not in memory or is in use. A leaf in use does not protect its parent;
// otherwise a reader could keep another user's entry in the pool for ever.
Evictor::Attempt Evictor::evict_leaf(uint64_t leaf, Effort effort, EvictResult& result) {
  EntryTable::Shard& shard = entries_.shard(leaf);
  const LockedEntry entry(shard, leaf);
  if (entry == nullptr || !entry->evictable()) return Attempt::kNothing;
  const Attempt attempt = evict_entry(shard, *entry, effort, false, result);
  return attempt == Attempt::kBusy ? Attempt::kNothing : attempt;
}

// The victim is a candidate again once a leaf has gone; else others have their turn first.
void Evictor::give_back(uint64_t victim, Attempt leaf) {
  const LockedEntry entry(entries_.shard(victim), victim);
  if (entry == nullptr || entry->removed) return;
  if (leaf == Attempt::kFreed && !entry->is_kept())
    entries_.unpark(*entry);
  else
    parked_.park(*entry, true);
}

bool Evictor::others_follow(std::shared_ptr<const EntryGroups::Group> group, bool removes,
                            std::optional<sys::Handle> last) {
  auto members = index_.groups().members(*group);
  if (last) std::erase(members, last->ino);
  MutexLock lock(followers_mutex_);
  // Each of a group may expire in the same second.
  if (!groups_.insert({group.get(), removes}).second) return false;
  followers_.push_back({std::move(group), removes, std::move(members), last});
  return true;
}

std::optional<Evictor::Attempt> Evictor::evict_follower(Effort effort, EvictResult& result) {
  uint64_t ino = 0;
  bool removes = false;
  std::shared_ptr<const EntryGroups::Group> group;
  std::optional<sys::Handle> last;
  {
    MutexLock lock(followers_mutex_);
    while (!last && !followers_.empty() && followers_.front().left.empty()) {
      last = followers_.front().last;
      groups_.erase({followers_.front().group.get(), followers_.front().removes});
      followers_.pop_front();
    }
    if (!last) {
      if (followers_.empty()) return std::nullopt;
      ino = followers_.front().left.back();
      removes = followers_.front().removes;
      group = followers_.front().group;
      followers_.front().left.pop_back();
    }
  }
  if (last) {
    expire(*last, nullptr);
    return Attempt::kBusy;
  }
  if (index_.groups().of(ino) != group) return Attempt::kBusy;
  if (removes) return remove_with_another(ino, RemovalReason::kWithGroup, result, group.get());
  EntryTable::Shard& shard = entries_.shard(ino);
  const LockedEntry entry(shard, ino);
  if (entry == nullptr || !entry->evictable() || entry->stage != Entry::Stage::kCandidate)
    return Attempt::kBusy;
  if (entry->tier == Entry::Tier::kClean) return drop_memory(*entry, result);
  if (disk_.takes_more() && !effort.clean_alone && goes_to_disk_first(*entry, effort))
    return Attempt::kSpilling;
  return Attempt::kBusy;
}

bool Evictor::evict_followers() {
  const uint64_t until_ns = now_ns() + kFollowersTurnNs;
  EvictResult result;
  while (now_ns() < until_ns)
    if (!evict_follower({.even_recent = true}, result)) return false;
  return true;
}

// For its own sake it would stay: what the disk is to have and does not have yet, and what is in use or
// pinned.
Evictor::Attempt Evictor::remove_with_another(uint64_t ino, RemovalReason reason, EvictResult& result,
                                              const EntryGroups::Group* group) {
  EntryTable::Shard& shard = entries_.shard(ino);
  const LockedEntry entry(shard, ino);
  if (entry == nullptr || entry->is_kept()) return Attempt::kBusy;
  if (group != nullptr) {
    // The index hears of it later.
    const auto file = arena_.open(handle_of(*entry), O_PATH | O_NOFOLLOW);
    if (!file || group_of(file->get()) != EntryGroups::name_of(*group)) return Attempt::kBusy;
  }
  const bool is_promised = disk_.durability() != Durability::kNone && entry->tier == Entry::Tier::kDirty;
  return is_promised ? Attempt::kBusy : remove_now(shard, *entry, reason, result);
}

bool Evictor::may_go_now(const Entry& entry) const {
  const bool disk_is_busy = disk_.away() != nullptr || (disk_.tier() != nullptr && !disk_.takes_more()) ||
                            entry.disk.promoting() || entry.disk.spilling() || entry.disk.awaited;
  return entry.closed() && !disk_is_busy;
}

Evictor::Attempt Evictor::remove_now(EntryTable::Shard& shard, Entry& entry, RemovalReason reason,
                                     EvictResult& result) {
  if (!may_go_now(entry)) return Attempt::kBusy;
  if (entry.tier != Entry::Tier::kCold) return discard(shard, entry, reason, result);
  return tree_.discard_cold(shard, entry, reason, Tree::kNamesAtOnce) ? Attempt::kFreed : Attempt::kBusy;
}

// What the entry says now counts: it may have been given another time since it was read. By the host's clock:
// the daemon's is up to a tick behind it, so that the time told may be as much too early, and the host's may
// have been set back. kNothing: it is to stay, and if `again_ms` is set, until then. kFreed: it may go.
Evictor::Attempt Evictor::has_expired(const Entry& entry, uint64_t& again_ms) const {
  const auto file = arena_.open(handle_of(entry), O_PATH | O_NOFOLLOW);
  if (!file) return Attempt::kBusy;
  const uint64_t second = expires_of(file->get());
  if (second == 0) return Attempt::kNothing;
  if (second > wall_clock_ns() / 1'000'000'000) {
    again_ms = coarse_ms_at(second);
    return Attempt::kNothing;
  }
  return entry.leased || !may_go_now(entry) ? Attempt::kBusy : Attempt::kFreed;
}

// The one that has expired goes last of its group: a daemon that dies before that finds the rest by it.
void Evictor::expire(const sys::Handle& expired, const std::shared_ptr<const EntryGroups::Group>& group) {
  Attempt attempt = Attempt::kNothing;
  uint64_t again_ms = 0;
  {
    EntryTable::Shard& shard = entries_.shard(expired.ino);
    const LockedEntry entry(shard, expired.ino);
    if (entry != nullptr && entry->generation == expired.generation && !entry->removed)
      attempt = has_expired(*entry, again_ms);
    EvictResult result;
    if (attempt == Attempt::kFreed && group == nullptr)
      attempt = remove_now(shard, *entry, RemovalReason::kExpired, result);
  }
  if (attempt == Attempt::kFreed && group != nullptr &&
      !(has_read_all_ && others_follow(group, true, expired)))
    attempt = Attempt::kBusy;
  if (attempt == Attempt::kBusy) again_ms = now_coarse_ms() + kAgainMs;
  if (again_ms != 0) lifetimes_.not_yet(expired, again_ms);
}

// One that is pinned expires too, because its writer has said both.
bool Evictor::remove_expired() {
  lifetimes_.step();
  // A group is not known as long as what came back at a start has not been read.
  if (disk_.restoring())
    has_read_all_ = false;
  else if (index_.waiting() == 0)
    has_read_all_ = true;
  const uint64_t until_ns = now_ns() + kFollowersTurnNs;
  while (now_ns() < until_ns && !surroundings_.listener->is_behind(number_)) {
    const auto expired = lifetimes_.next_expired();
    if (!expired) return false;
    expire(*expired, index_.groups().of(expired->ino));
  }
  return true;
}

}  // namespace kvcachefs
