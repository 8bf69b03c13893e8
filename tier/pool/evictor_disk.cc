// The evictor where space on the disk runs short.
#include <algorithm>
#include <utility>

#include "tier/pool/evictor.h"

namespace kvcachefs {

void Evictor::make_disk_room() {
  if (!disk_.takes_more()) return;
  DiskTier* const tier = disk_.tier();
  const SpillStore& store = *tier->store;
  // Because space comes back only with a transaction, some is kept for what is on its way to the disk
  // meanwhile.
  const uint64_t size = store.space().units() * store.unit_bytes();
  const uint64_t ahead =
      std::min(size / 32, 4 * capacity_.expected_entry_bytes() + tier->spiller.backlog_bytes());
  const uint64_t wanted = std::min(std::max(disk_.take_wanted_bytes(), ahead), size);
  EvictResult evicted;
  const auto short_of_room = [&] {
    // A part of the leaving space comes only with a spill that itself waits for room: an older file's, which
    // the disk keeps under a name until it has the newer one. So leaving space counts only while the log is
    // busy.
    const uint64_t leaving_units = tier->store->log().idle() ? 0 : store.leaving_units();
    return (store.space().free_units() + leaving_units) * store.unit_bytes() < wanted;
  };
  Effort effort{.even_recent = true, .clean_alone = true, .over_alone = entries_.shares().over().any()};
  for (int tries = 0; tries < 4096 && short_of_room(); ++tries) {
    // If nothing is cold, the next clean victim gives up its memory, and so becomes one that can leave the
    // disk.
    if (discard_coldest(effort.over_alone) || evict_one(effort, evicted) != Attempt::kNothing) continue;
    if (!std::exchange(effort.over_alone, false)) return;
  }
}

bool Evictor::discard_coldest(bool over_alone) {
  if (surroundings_.listener->is_behind(number_)) return false;
  auto ino = entries_.candidates().next_cold(entries_.shares().over());
  if (!ino && !over_alone) ino = entries_.candidates().next_cold();
  if (!ino) return false;
  if (const uint64_t leaf = first_to_leave(*ino); leaf != *ino) {
    EvictResult removed;
    if (remove_with_another(leaf, RemovalReason::kDiscarded, removed) == Attempt::kFreed) {
      give_back(*ino, Attempt::kFreed);
      return true;
    }
  }
  EntryTable::Shard& shard = entries_.shard(*ino);
  const LockedEntry entry(shard, *ino);
  if (entry == nullptr || entry->removed) return true;
  if (entry->open_count > 0 || entry->disk.promoting() || entry->tier != Entry::Tier::kCold) {
    parked_.park(*entry, true);
    return true;
  }
  const auto group = index_.groups().of(*ino);
  if (tree_.discard_cold(shard, *entry, RemovalReason::kDiscarded, Tree::kNamesAtOnce) && group != nullptr)
    others_follow(group, true);
  return true;
}

}  // namespace kvcachefs
