#include "tier/pool.h"

#include <cerrno>

#include "base/clock.h"

namespace kvcachefs {

Result<std::shared_ptr<Pool>> Pool::create(uint16_t number, const PoolOptions& options,
                                           const Surroundings& surroundings) {
  auto arena = MemoryArena::create({.path = surroundings.arena_path,
                                    .size_bytes = options.size_bytes,
                                    .mode = options.mode,
                                    .uid = options.uid,
                                    .gid = options.gid});
  if (!arena) return pass(arena);
  return std::make_shared<Pool>(number, options, surroundings, std::move(*arena));
}

Pool::Pool(uint16_t number, const PoolOptions& options, const Surroundings& surroundings, MemoryArena arena)
    : number_(number),
      name_(options.name),
      surroundings_(surroundings),
      arena_(std::move(arena)),
      candidates_(options.policy),
      size_bytes_(options.size_bytes),
      options_(options) {
  // Also what a version that knew of no such limit has left.
  if (options_.size_max_bytes == 0) options_.size_max_bytes = options_.size_bytes;
}

Pool::~Pool() {
  for (size_t index = 0; index < EntryTable::kShards; ++index) {
    EntryTable::Shard& shard = table_.shard_at(index);
    MutexLock lock(shard.mutex);
    for (auto& [ino, entry] : shard.entries)
      if (entry.backing >= 0) surroundings_.backing_store->give_back(entry.backing);
  }
}

Pool::Accounted::Accounted(Pool& pool, const Entry& entry)
    : pool_(pool),
      entry_(entry),
      evictable_(entry.holds_evictable_memory() ? entry.charged_bytes : 0),
      pinned_(entry.pins_memory() ? entry.charged_bytes : 0),
      bytes_(entry.charged_bytes),
      tier_(static_cast<size_t>(entry.tier)),
      counted_(entry.is_stored()) {}

Pool::Accounted::~Accounted() {
  // Unsigned differences wrap around to the right sum.
  pool_.evictable_bytes_ += (entry_.holds_evictable_memory() ? entry_.charged_bytes : 0) - evictable_;
  count_pin();
  if (counted_) {
    --pool_.tier_entries_[tier_];
    pool_.tier_bytes_[tier_] -= bytes_;
  }
  if (entry_.is_stored()) {
    ++pool_.tier_entries_[static_cast<size_t>(entry_.tier)];
    pool_.tier_bytes_[static_cast<size_t>(entry_.tier)] += entry_.charged_bytes;
  }
}

void Pool::Accounted::count_pin() {
  const uint64_t before = std::exchange(pinned_, entry_.pins_memory() ? entry_.charged_bytes : 0);
  pool_.pinned_bytes_ += pinned_ - before;
}

Result<void> Pool::retire() {
  auto removed = arena_.remove_tree();
  if (removed) retired_.store(true, std::memory_order_release);
  return removed;
}

bool Pool::forgotten() {
  for (size_t index = 0; index < EntryTable::kShards; ++index) {
    EntryTable::Shard& shard = table_.shard_at(index);
    MutexLock lock(shard.mutex);
    if (!shard.entries.empty()) return false;
  }
  return true;
}

}  // namespace kvcachefs
