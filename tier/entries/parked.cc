#include "tier/entries/parked.h"

#include <algorithm>
#include <array>
#include <vector>

#include "base/clock.h"

namespace kvcachefs {

// Pauses for an entry that is in use: the kernel lets go of an open file a little after it has told of the
// close, and a mapping can end without any sign to the daemon.
constexpr std::array<uint64_t, 5> kBusyRetryMs = {1, 4, 16, 64, 100};

void Parked::park(Entry& entry, bool recent, bool anew) {
  const uint8_t tries = anew ? 0 : entry.busy_tries;
  const bool last = tries + 1u >= kBusyRetryMs.size();
  const uint64_t pause_ms = recent ? kRecentMs : kBusyRetryMs[tries];
  entries_.park(entry, static_cast<uint8_t>(recent || last ? tries : tries + 1));
  MutexLock lock(mutex_);
  parked_.push_back(
      {entry.policy.ino, now_coarse_ms() + pause_ms, entry.policy.owner, recent, !recent && !last});
}

void Parked::held(Entry& entry) {
  if (entry.memory.held || !entry.closed()) return;
  entries_.contents().held(entry, true);
  MutexLock lock(mutex_);
  held_.insert(entry.policy.ino);
}

std::optional<uint64_t> Parked::next_held() {
  MutexLock lock(mutex_);
  if (held_.empty()) return std::nullopt;
  auto next = held_.upper_bound(last_held_);
  if (next == held_.end()) next = held_.begin();
  last_held_ = *next;
  held_.erase(next);
  return last_held_;
}

void Parked::retry(bool even_recent) {
  std::vector<uint64_t> ready;
  {
    const uint64_t now_ms = now_coarse_ms();
    MutexLock lock(mutex_);
    std::erase_if(parked_, [&](const Victim& parked) {
      const bool due = parked.until_ms <= now_ms || (even_recent && parked.recent);
      if (due) ready.push_back(parked.ino);
      return due;
    });
    ++unparking_;
  }
  for (const uint64_t ino : ready) {
    const LockedEntry entry(entries_.shard(ino), ino);
    // An open entry stays parked until its last close, a pinned one until it is unpinned.
    if (entry != nullptr && entry->parked && entry->closed() && !entry->is_kept() && !entry->disk.spilling())
      entries_.unpark(*entry);
  }
  MutexLock lock(mutex_);
  --unparking_;
}

bool Parked::more_to_come(const Owners& of) {
  MutexLock lock(mutex_);
  return unparking_ > 0 ||
         std::ranges::any_of(parked_, [&](const Victim& each) { return each.closing && of[each.owner]; });
}

}  // namespace kvcachefs
