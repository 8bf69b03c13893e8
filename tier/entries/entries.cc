#include "tier/entries/entries.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace kvcachefs {
namespace {

uint64_t if_true(bool counts, uint64_t bytes) {
  return counts ? bytes : 0;
}

#ifdef KVCACHEFS_CHECK_STATES
void check_state(const Entry& entry) {
  const bool is_cold = entry.tier == Entry::Tier::kCold;
  // Of one that another process has left it is known later what the disk has.
  const bool in_catalog = entry.is_stored() && entry.disk.node_id != 0;
  const std::pair<bool, const char*> rules[] = {
      {entry.writer_count > entry.open_count, "more writers than opens"},
      {entry.direct_count > entry.open_count, "more opens from the disk than opens"},
      {entry.writer_count > 0 && entry.tier != Entry::Tier::kDirty, "a copy of what is being written"},
      {entry.is_stored() && entry.disk.promoting() && !is_cold, "promoted in memory"},
      {entry.disk.spilling() && is_cold, "spilled without memory"},
      {entry.disk.awaited && is_cold, "awaited without memory"},
      {!entry.is_file() && (entry.tier != Entry::Tier::kDirty || entry.open_count > 0 || entry.pinned),
       "the state of a file, of what is none"},
      {in_catalog && entry.tier != Entry::Tier::kDirty && entry.disk.copy() == nullptr, "no copy"},
      {in_catalog && is_cold && entry.direct_count > 0 && entry.disk.held() == nullptr,
       "served from the disk, which may drop it"},
  };
  for (const auto& [is_broken, rule] : rules) {
    if (!is_broken) continue;
    fmt::print(stderr,
               "<2>entry {}: {}: stage {} tier {} node {} opens {} writers {} from disk {} pinned {} removed "
               "{} moved {} awaited {} parked {}\n",
               entry.policy.ino, rule, static_cast<int>(entry.stage), tier_name(entry.tier),
               entry.disk.node_id, entry.open_count, entry.writer_count, entry.direct_count, entry.pinned,
               entry.removed, static_cast<int>(entry.disk.move), entry.disk.awaited, entry.parked);
    KVCACHEFS_CHECK(!is_broken);
  }
}
#else
void check_state(const Entry&) {}
#endif

}  // namespace

// Takes what the entry contributed to the sums away when it ends, and adds what the entry contributes then.
// After that it tells the observers of the event.
class Entries::Change {
 public:
  using Event = void (EntryObserver::*)(const Entry&);
  Change(Entries& entries, const Entry& entry, Event event = nullptr)
      : entries_(entries),
        entry_(entry),
        event_(event),
        evictable_(if_true(entry.holds_evictable_memory(), entry.memory.charged_bytes)),
        pinned_(if_true(entry.pins_memory(), entry.pin_bytes())),
        bytes_(entry.memory.charged_bytes),
        tier_(static_cast<size_t>(entry.tier)),
        stored_(entry.is_stored()) {}
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change() {
    // Unsigned differences wrap around to the right sum.
    entries_.evictable_bytes_ +=
        if_true(entry_.holds_evictable_memory(), entry_.memory.charged_bytes) - evictable_;
    entries_.pinned_bytes_ += if_true(entry_.pins_memory(), entry_.pin_bytes()) - pinned_;
    if (stored_) {
      --entries_.tier_entries_[tier_];
      entries_.tier_bytes_[tier_] -= bytes_;
    }
    if (entry_.is_stored()) {
      ++entries_.tier_entries_[static_cast<size_t>(entry_.tier)];
      entries_.tier_bytes_[static_cast<size_t>(entry_.tier)] += entry_.memory.charged_bytes;
    }
    check_state(entry_);
    if (event_ != nullptr) entries_.tell(entry_, event_);
  }

 private:
  Entries& entries_;
  const Entry& entry_;
  const Event event_;
  const uint64_t evictable_, pinned_, bytes_;
  const size_t tier_;
  const bool stored_;
};

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
  if (is_named) ++files_;
  if (!is_open) return candidates_.fresh(entry);
  entry.open_count = 1;
  entry.writer_count = is_writer ? 1 : 0;
  ++open_files_;
}

void Entries::opened(Entry& entry, bool writer, bool from_disk, uint64_t client) {
  {
    const Change change(*this, entry);
    if (entry.open_count++ == 0) ++open_files_;
    if (from_disk) ++entry.direct_count;
    if (writer) {
      ++entry.writer_count;
      entry.flushed = false;
    } else {
      ++entry.hits;
    }
    entry.busy_tries = 0;
    candidates_.opened(entry);
  }
  tell(entry, &EntryObserver::opened, writer, client);
  entry.disk.prefetched = false;
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
  --open_files_;
  if (entry.parked && !entry.pinned) candidates_.unpark(entry);
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
    charged(entry, bytes.charged);
    entry.memory.whole_bytes = bytes.whole;  // counts if it gets a name
    return true;
  }
  bool stays_pinned = true;
  {
    MutexLock pins(pins_mutex_);
    const Change change(*this, entry);
    // The pin came before the size was known, or the entry has grown.
    const uint64_t others = pinned_bytes_ - entry.pin_bytes();
    entry.memory.charged_bytes = bytes.charged;
    entry.memory.whole_bytes = bytes.whole;
    if (others + entry.pin_bytes() > pinned_max_bytes) entry.pinned = stays_pinned = false;
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
    if (entry.pinned && pinned_bytes_ + entry.pin_bytes() > pinned_max_bytes)
      entry.pinned = stays_pinned = false;
    entry.removed = false;
    entry.renamed = true;
    if (entry.is_file()) ++files_;
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
  if (entry.is_file()) --files_;
  tell(entry, &EntryObserver::removed, reason);
  if (entry.disk.copies) entry.disk.copies->latest.reset();
}

void Entries::charged(Entry& entry, uint64_t bytes) {
  const Change change(*this, entry);
  entry.memory.charged_bytes = bytes;
}

void Entries::dirtied(Entry& entry) {
  const Change change(*this, entry, &EntryObserver::dirtied);
  ++entry.disk.content_epoch;
  if (entry.tier != Entry::Tier::kDirty) candidates_.moved(entry, Entry::Tier::kDirty);
}

void Entries::cut(Entry& entry, bool to_nothing) {
  ++entry.version;
  if (to_nothing) {
    entry.disk.emptied = entry.disk.node_id != 0;
    entry.disk.first_version = entry.version;
  }
  check_state(entry);
}

void Entries::moves(Entry& entry, DiskFacts::Move move) {
  entry.disk.move = move;
  check_state(entry);
}

void Entries::spill_asked(Entry& entry, DiskFacts::Spill asked) {
  entry.disk.asked = asked;
  if (!entry.disk.spill_queued()) unpark_if_evictable(entry);
  check_state(entry);
}

void Entries::spilled(Entry& entry) {
  const Change change(*this, entry, &EntryObserver::spilled);
  candidates_.moved(entry, Entry::Tier::kClean);
}

void Entries::evicted(Entry& entry) {
  {
    const Change change(*this, entry);
    // A fresh victim was taken out of the fresh list, so it becomes a candidate here.
    if (entry.stage == Entry::Stage::kFresh) candidates_.publish(entry);
    candidates_.moved(entry, Entry::Tier::kCold);
  }
  tell(entry, &EntryObserver::evicted);
  entry.disk.prefetched = false;
}

void Entries::promoted(Entry& entry, bool asked_for) {
  {
    const Change change(*this, entry);
    entry.disk.prefetched = !asked_for;
    entry.disk.awaited = true;
    entry.kernel.looked_up_ms = static_cast<uint32_t>(now_coarse_ms());  // a waiter is about to open it
    candidates_.moved(entry, Entry::Tier::kClean);
  }
  tell(entry, &EntryObserver::promoted, asked_for);
}

void Entries::waiters_told(Entry& entry) {
  if (std::exchange(entry.disk.awaited, false)) unpark_if_evictable(entry);
  check_state(entry);
}

void Entries::park(Entry& entry, std::optional<uint8_t> busy_tries) {
  entry.busy_tries = busy_tries.value_or(entry.busy_tries);
  candidates_.park(entry);
  check_state(entry);
}

void Entries::unpark_if_evictable(Entry& entry) {
  if (entry.parked && entry.evictable()) candidates_.unpark(entry);
}

bool Entries::pinned(Entry& entry, uint64_t whole_bytes, uint64_t pinned_max_bytes) {
  {
    MutexLock pins(pins_mutex_);
    entry.memory.whole_bytes = whole_bytes;
    if (pinned_bytes_ + entry.pin_bytes() > pinned_max_bytes) return false;
    const Change change(*this, entry);
    entry.pinned = true;
  }
  candidates_.park(entry);
  tell(entry, &EntryObserver::pinned);
  return true;
}

void Entries::unpinned(Entry& entry) {
  {
    MutexLock pins(pins_mutex_);
    const Change change(*this, entry);
    entry.pinned = false;
  }
  candidates_.unpark(entry);
  tell(entry, &EntryObserver::pinned);
}

void Entries::found(Entry& entry, const Found& facts) {
  const Change change(*this, entry, &EntryObserver::found);
  entry.stage = facts.stage;
  if (facts.cold) entry.tier = Entry::Tier::kCold;
  entry.open_count = facts.open_count;
  entry.writer_count = facts.writer_count;
  entry.direct_count = facts.direct_count;
  entry.memory.charged_bytes = facts.charged_bytes;
  entry.memory.whole_bytes = facts.whole_bytes;
  entry.stored_ms = facts.stored_ms;
  entry.pinned = facts.pinned;
  entry.removed = !facts.named;
  if (facts.open_count > 0) ++open_files_;
  if (facts.named && entry.is_file()) ++files_;
}

void Entries::found_stored(Entry& entry) {
  published(entry);
  if (entry.pinned) candidates_.park(entry);
}

void Entries::found_version(Entry& entry, uint32_t version, uint32_t first_version) {
  entry.version = version;
  entry.disk.first_version = first_version;
}

void Entries::found_copy(Entry& entry, std::optional<uint64_t> cold_bytes) {
  const Change change(*this, entry, &EntryObserver::found);
  if (cold_bytes) entry.memory.charged_bytes = *cold_bytes;
  candidates_.moved(entry, cold_bytes ? Entry::Tier::kCold : Entry::Tier::kClean);
}

}  // namespace kvcachefs
