#include "tier/entries/entry_contents.h"

#include <utility>

#include "base/clock.h"
#include "tier/entries/entries.h"
#include "tier/entries/entry_change.h"

namespace kvcachefs {

void EntryContents::charged(Entry& entry, uint64_t bytes) {
  const Entries::Change change(entries_, entry);
  entry.memory.charged_bytes = bytes;
}

void EntryContents::owned(Entry& entry, uid_t uid, uint32_t more_inode_space) {
  const Taken before = taken_of(entry);
  entry.kernel.more_inode_space = more_inode_space;
  const uint8_t owner = entries_.shares_.given(entry.policy, uid, before, taken_of(entry));
  if (owner != entry.policy.owner) entries_.candidates_.owned(entry, owner);
}

void EntryContents::held(Entry& entry, bool held) {
  const Entries::Change change(entries_, entry);
  entry.memory.held = held;
}

void EntryContents::shrunk(const Entry& entry) const {
  entries_.tell(entry, &EntryObserver::shrunk);
}

void EntryContents::dirtied(Entry& entry) {
  const Entries::Change change(entries_, entry, &EntryObserver::dirtied);
  ++entry.disk.content_epoch;
  if (entry.tier != Entry::Tier::kDirty) entries_.candidates_.moved(entry, Entry::Tier::kDirty);
}

void EntryContents::cut(Entry& entry, bool to_nothing) {
  ++entry.version;
  if (to_nothing) {
    entry.disk.emptied = entry.disk.node_id != 0;
    entry.disk.first_version = entry.version;
  }
  check_state(entry);
}

void EntryContents::spill_asked(Entry& entry, DiskFacts::Spill asked) {
  entry.disk.asked = asked;
  if (!entry.disk.spill_queued()) unpark_if_evictable(entry);
  check_state(entry);
}

void EntryContents::moves(Entry& entry, DiskFacts::Move move) {
  entry.disk.move = move;
  check_state(entry);
}

void EntryContents::spilled(Entry& entry) {
  const Entries::Change change(entries_, entry, &EntryObserver::spilled);
  entries_.candidates_.moved(entry, Entry::Tier::kClean);
}

void EntryContents::evicted(Entry& entry) {
  const bool is_published = entry.stage == Entry::Stage::kFresh;
  {
    const Entries::Change change(entries_, entry);
    // A fresh victim was taken out of the fresh list, so it becomes a candidate here.
    if (is_published) entries_.candidates_.publish(entry);
    entries_.candidates_.moved(entry, Entry::Tier::kCold);
    entry.memory.held = false;
  }
  if (is_published) entries_.tell(entry, &EntryObserver::published);
  entries_.tell(entry, &EntryObserver::evicted);
  entry.disk.prefetched = entry.disk.guessed = false;
}

void EntryContents::promoted(Entry& entry, bool asked_for) {
  {
    const Entries::Change change(entries_, entry);
    entry.disk.prefetched = !asked_for;
    entry.disk.awaited = true;
    entry.kernel.looked_up_ms = static_cast<uint32_t>(now_coarse_ms());  // a waiter is about to open it
    entries_.candidates_.moved(entry, Entry::Tier::kClean);
  }
  entries_.tell(entry, &EntryObserver::promoted, asked_for);
}

void EntryContents::waiters_told(Entry& entry) {
  if (std::exchange(entry.disk.awaited, false)) unpark_if_evictable(entry);
  check_state(entry);
}

void EntryContents::found_in_memory(Entry& entry) {
  entry.kernel.looked_up_ms = static_cast<uint32_t>(now_coarse_ms());
  entries_.candidates_.opened(entry);
}

const CatalogContent& EntryContents::copied(Entry& entry, CatalogContent content) {
  const TakenChange change(entries_.shares_, entry);
  return entry.disk.put_copy(std::move(content));
}

const CatalogContent& EntryContents::held_on_disk(Entry& entry, CatalogContent content) {
  const TakenChange change(entries_.shares_, entry);
  return entry.disk.hold(std::move(content));
}

std::unique_ptr<CatalogContent> EntryContents::let_go(Entry& entry) {
  const TakenChange change(entries_.shares_, entry);
  return std::move(entry.disk.copies->held);
}

void EntryContents::lost_copies(Entry& entry) {
  const TakenChange change(entries_.shares_, entry);
  entry.disk.copies.reset();
}

void EntryContents::found_version(Entry& entry, uint32_t version, uint32_t first_version) {
  entry.version = version;
  entry.disk.first_version = first_version;
}

void EntryContents::found_copy(Entry& entry, std::optional<uint64_t> cold_bytes) {
  const Entries::Change change(entries_, entry, &EntryObserver::found);
  if (cold_bytes) entry.memory.charged_bytes = *cold_bytes;
  entries_.candidates_.moved(entry, cold_bytes ? Entry::Tier::kCold : Entry::Tier::kClean);
}

void EntryContents::unpark_if_evictable(Entry& entry) {
  if (entry.parked && entry.evictable()) entries_.candidates_.unpark(entry);
}

}  // namespace kvcachefs
