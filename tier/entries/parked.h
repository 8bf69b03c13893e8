// Parked knows the victims that were in use or just looked up, and when each is to be tried again. Any
// thread; park() is called with the entry's shard held, the others with none, because retry() takes them. The
// lock here is taken below a shard. Never fails.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>

#include "base/mutex.h"
#include "tier/entries/entries.h"

namespace kvcachefs {

class Parked {
 public:
  // Between a client's lookup and its open an entry is spared if others can go.
  static constexpr uint64_t kRecentMs = 10;

  explicit Parked(Entries& entries) : entries_(entries) {}

  // `recent`: the entry was not looked at, because it was just looked up or others go first. `anew`:
  // something of it could go, so that it counts as found in use for the first time.
  void park(Entry& entry, bool recent, bool anew = false) EXCLUDES(mutex_);
  // A closed entry was found to be in use: it is not evictable until it is found free, or opened again.
  void held(Entry& entry) EXCLUDES(mutex_);
  // The next of those in turn, taken out of their list; the number may be stale.
  std::optional<uint64_t> next_held() EXCLUDES(mutex_);
  // Makes candidates of the entries whose time has come.
  void retry(bool even_recent) EXCLUDES(mutex_);
  // Entries of these owners come back soon: their holders may have closed them already.
  bool more_to_come(const Owners& of = Owners().set()) EXCLUDES(mutex_);

 private:
  struct Victim {
    uint64_t ino;
    uint64_t until_ms;
    uint8_t owner;
    bool recent;   // parked only because it was just looked up
    bool closing;  // its holder may have closed it already
  };

  Entries& entries_;
  Mutex mutex_;
  std::deque<Victim> parked_ GUARDED_BY(mutex_);
  std::set<uint64_t> held_ GUARDED_BY(mutex_);
  uint64_t last_held_ GUARDED_BY(mutex_) = 0;
  // Threads that have taken entries out of parked_ and not given them back yet.
  int unparking_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
