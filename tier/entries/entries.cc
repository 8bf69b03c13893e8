#include "tier/entries/entries.h"

#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "tier/entries/entry_change.h"

namespace kvcachefs {

void Entries::observe(EntryObserver& observer) {
  for (auto& place : observers_) {
    EntryObserver* none = nullptr;
    if (place.compare_exchange_strong(none, &observer, std::memory_order_release)) return;
  }
  KVCACHEFS_CHECK(false && "there is a place for each observer");
}

void Entries::created(Entry& entry, bool is_named, bool is_open, bool is_writer) {
  const Change change(*this, entry, &EntryObserver::created);
  entry.stage = Entry::Stage::kWritten;
  entry.removed = !is_named;
  entry.stored_ms = now_coarse_ms();
  if (is_named) ++sums_.files_;
  if (!is_open) return candidates_.fresh(entry);
  entry.open_count = 1;
  entry.writer_count = is_writer ? 1 : 0;
  ++sums_.open_files_;
}

void Entries::opened(Entry& entry, bool writer, bool from_disk, uint64_t client) {
  {
    const Change change(*this, entry);
    if (entry.open_count++ == 0) ++sums_.open_files_;
    if (from_disk) ++entry.direct_count;
    if (writer) {
      if (entry.pinned) entry.memory.set_whole_bytes(entry.pin_bytes());
      ++entry.writer_count;
      entry.flushed = false;
    } else {
      ++entry.hits;
    }
    entry.busy_tries = 0;
    entry.memory.held = false;
    candidates_.opened(entry);
  }
  tell(entry, &EntryObserver::opened, writer, client);
  entry.disk.prefetched = entry.disk.guessed = false;
}

bool Entries::writer_closed(Entry& entry) {
  const Change change(*this, entry);
  return entry.writer_count > 0 && --entry.writer_count == 0;
}

void Entries::flushed(Entry& entry) {
  entry.flushed = true;
  entry.hits = 0;
  check_state(entry);
}

bool Entries::closed(Entry& entry, bool from_disk) {
  const Change change(*this, entry, &EntryObserver::closed);
  if (from_disk && entry.direct_count > 0) --entry.direct_count;
  if (--entry.open_count > 0) return false;
  --sums_.open_files_;
  if (entry.parked && !entry.is_kept()) candidates_.unpark(entry);
  return true;
}

bool Entries::stored(Entry& entry, FileBytes bytes, uint64_t pinned_max_bytes) {
  ++entry.version;
  // Hits start anew when the writer closes. The kernel tells of a close at once only by FLUSH, where they
  // have been reset; a reader may have come after it.
  if (!entry.flushed) entry.hits = 0;
  entry.stored_ms = now_coarse_ms();
  const bool stays_pinned = resized(entry, bytes, pinned_max_bytes);
  const bool is_new = !entry.removed && entry.stage == Entry::Stage::kWritten;
  const bool has_its_name = is_new && std::exchange(entry.renamed, false);
  {
    const Change change(*this, entry, &EntryObserver::stored);
    if (is_new && !has_its_name) candidates_.fresh(entry);
  }
  if (has_its_name) published(entry);
  return stays_pinned;
}

bool Entries::resized(Entry& entry, FileBytes bytes, uint64_t pinned_max_bytes) {
  if (!entry.pins_memory()) {
    contents_.charged(entry, bytes.charged);
    entry.memory.set_whole_bytes(bytes.whole);  // counts if it gets a name
    return true;
  }
  bool stays_pinned = true;
  {
    MutexLock pins(pins_mutex_);
    const Change change(*this, entry);
    // The pin came before the size was known, or the entry has grown.
    const uint64_t others = sums_.pinned_bytes_ - entry.pin_bytes();
    entry.memory.charged_bytes = bytes.charged;
    entry.memory.set_whole_bytes(bytes.whole);
    if (others + entry.pin_bytes() > pinned_max_bytes) entry.pinned = entry.leased = stays_pinned = false;
  }
  if (!stays_pinned) lost_its_pin(entry);
  return stays_pinned;
}

void Entries::lost_its_pin(Entry& entry) {
  // An entry that is still open is unparked by its last close.
  if (entry.open_count == 0) candidates_.unpark(entry);
  tell(entry, &EntryObserver::pinned);
}

void Entries::published(Entry& entry) {
  const Change change(*this, entry, &EntryObserver::published);
  candidates_.publish(entry);
}

void Entries::renamed(Entry& entry, uint32_t name_hash) {
  entry.disk.name_hash = name_hash;
  if (entry.stage == Entry::Stage::kWritten) entry.renamed = true;
  tell(entry, &EntryObserver::renamed);
  if (entry.stage == Entry::Stage::kFresh) published(entry);
  check_state(entry);
}

bool Entries::named(Entry& entry, uint64_t pinned_max_bytes) {
  bool stays_pinned = true;
  {
    MutexLock pins(pins_mutex_);
    const Change change(*this, entry);
    if (entry.is_kept() && sums_.pinned_bytes_ + entry.pin_bytes() > pinned_max_bytes)
      entry.pinned = entry.leased = stays_pinned = false;
    entry.removed = false;
    entry.renamed = true;
    if (entry.is_file()) ++sums_.files_;
  }
  if (!stays_pinned) lost_its_pin(entry);
  tell(entry, &EntryObserver::renamed);
  if (entry.open_count == 0 && entry.stage == Entry::Stage::kWritten) published(entry);
  return stays_pinned;
}

void Entries::removed(Entry& entry, RemovalReason reason) {
  {
    const Change change(*this, entry);
    candidates_.removed(entry);
    entry.removed = true;
  }
  if (entry.is_file()) --sums_.files_;
  tell(entry, &EntryObserver::removed, reason);
  const TakenChange change(shares_, entry);
  if (entry.disk.copies) entry.disk.copies->latest.reset();
}

void Entries::park(Entry& entry, std::optional<uint8_t> busy_tries) {
  entry.busy_tries = busy_tries.value_or(entry.busy_tries);
  candidates_.park(entry);
  check_state(entry);
}

bool Entries::pinned(Entry& entry, uint64_t whole_bytes, uint64_t pinned_max_bytes, Pin pin) {
  {
    MutexLock pins(pins_mutex_);
    if (!entry.is_kept()) {
      entry.memory.set_whole_bytes(whole_bytes);
      if (sums_.pinned_bytes_ + entry.pin_bytes() > pinned_max_bytes) return false;
    }
    const Change change(*this, entry);
    if (pin == Pin::kLease)
      entry.leased = true;
    else
      entry.pinned = true;
  }
  candidates_.park(entry);
  tell(entry, &EntryObserver::pinned);
  return true;
}

void Entries::unpinned(Entry& entry, Pin pin) {
  {
    MutexLock pins(pins_mutex_);
    const Change change(*this, entry);
    if (pin == Pin::kLease)
      entry.leased = false;
    else
      entry.pinned = false;
  }
  if (!entry.is_kept()) candidates_.unpark(entry);
  tell(entry, &EntryObserver::pinned);
}

void Entries::described(Entry& entry, std::optional<int> priority) {
  if (priority) return candidates_.reprioritised(entry, *priority);
  entry.described = true;
  tell(entry, &EntryObserver::described);
}

void Entries::found(Entry& entry, const Found& facts) {
  const Change change(*this, entry, &EntryObserver::found);
  entry.stage = facts.stage;
  if (facts.cold) entry.tier = Entry::Tier::kCold;
  entry.open_count = facts.open_count;
  entry.writer_count = facts.writer_count;
  entry.direct_count = facts.direct_count;
  entry.memory.charged_bytes = facts.charged_bytes;
  entry.memory.set_whole_bytes(facts.whole_bytes);
  entry.stored_ms = facts.stored_ms;
  entry.pinned = facts.pinned;
  entry.removed = !facts.named;
  entry.described = facts.described;
  if (facts.open_count > 0) ++sums_.open_files_;
  if (facts.named && entry.is_file()) ++sums_.files_;
}

void Entries::found_stored(Entry& entry) {
  published(entry);
  if (entry.pinned) candidates_.park(entry);
}

}  // namespace kvcachefs
