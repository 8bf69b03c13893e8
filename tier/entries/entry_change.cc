#include "tier/entries/entry_change.h"

#include <fmt/format.h>

#include <utility>

#include "base/check.h"

namespace kvcachefs {
namespace {

uint64_t if_true(bool counts, uint64_t bytes) {
  return counts ? bytes : 0;
}

}  // namespace

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
      {!entry.is_file() && (entry.tier != Entry::Tier::kDirty || entry.open_count > 0 || entry.is_kept()),
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
               entry.disk.node_id, entry.open_count, entry.writer_count, entry.direct_count, entry.is_kept(),
               entry.removed, static_cast<int>(entry.disk.move), entry.disk.awaited, entry.parked);
    KVCACHEFS_CHECK(!is_broken);
  }
}
#else
void check_state(const Entry&) {}
#endif

Entries::Change::Change(Entries& entries, const Entry& entry, Event event)
    : entries_(entries),
      entry_(entry),
      event_(event),
      evictable_(entry.evictable_bytes()),
      held_(entry.held_bytes()),
      pinned_(if_true(entry.pins_memory(), entry.pin_bytes())),
      bytes_(entry.memory.charged_bytes),
      taken_(entries.shares_, entry),
      tier_(static_cast<size_t>(entry.tier)),
      stored_(entry.is_stored()) {}

Entries::Change::~Change() {
  // Unsigned differences wrap around to the right sum.
  entries_.sums_.evictable_bytes_ += entry_.evictable_bytes() - evictable_;
  entries_.sums_.held_bytes_ += entry_.held_bytes() - held_;
  entries_.sums_.pinned_bytes_ += if_true(entry_.pins_memory(), entry_.pin_bytes()) - pinned_;
  if (stored_) {
    --entries_.sums_.tier_entries_[tier_];
    entries_.sums_.tier_bytes_[tier_] -= bytes_;
  }
  if (entry_.is_stored()) {
    ++entries_.sums_.tier_entries_[static_cast<size_t>(entry_.tier)];
    entries_.sums_.tier_bytes_[static_cast<size_t>(entry_.tier)] += entry_.memory.charged_bytes;
  }
  check_state(entry_);
  if (event_ != nullptr) entries_.tell(entry_, event_);
}

}  // namespace kvcachefs
