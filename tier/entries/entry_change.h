// Entries::Change keeps the sums true: it is what each verb of Entries and EntryContents that changes what an
// entry counts for has as long as it works. Only those two include this. Threads: as the verbs. Never fails,
// but for a broken state, which ends a build that checks it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tier/entries/entries.h"

namespace kvcachefs {

// Stops a build with KVCACHEFS_CHECK_STATES if the entry is in an impossible state, and prints it.
void check_state(const Entry& entry);

// Takes what the entry contributed to the sums away when it ends, and adds what the entry contributes then.
// After that it tells the observers of the event.
class Entries::Change {
 public:
  using Event = void (EntryObserver::*)(const Entry&);
  Change(Entries& entries, const Entry& entry, Event event = nullptr);
  Change(const Change&) = delete;
  Change& operator=(const Change&) = delete;
  ~Change();

 private:
  Entries& entries_;
  const Entry& entry_;
  const Event event_;
  const uint64_t evictable_, held_, pinned_, bytes_;
  const TakenChange taken_;
  const size_t tier_;
  const bool stored_;
};

}  // namespace kvcachefs
