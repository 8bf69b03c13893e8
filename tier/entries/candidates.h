// Candidates knows which entries may leave and in what order. The pool's policy orders the entries in memory;
// a second instance of it orders the cold entries, which leave the disk. Fresh entries (tier/entries/entry.h)
// wait in a list of their own until they are published. Any thread; the caller holds the entry's shard, and
// the lock here is taken below it. Never fails. An entry without a name (Entry::removed) is never taken in
// again, also when it is closed or unpinned, because it may be erased at any moment.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "tier/entries/entry.h"

namespace kvcachefs {

class Candidates {
 public:
  explicit Candidates(std::string_view policy);

  // The entry's last writer has closed it, and no client has renamed it to its final name yet. A rename or
  // one second of age publishes it (publish()).
  void fresh(Entry& entry) EXCLUDES(mutex_);
  void publish(Entry& entry) EXCLUDES(mutex_);  // the entry becomes an ordinary candidate
  void opened(Entry& entry) EXCLUDES(mutex_);
  void reprioritised(Entry& entry, int priority) EXCLUDES(mutex_);
  void owned(Entry& entry, uint8_t owner) EXCLUDES(mutex_);
  void park(Entry& entry) EXCLUDES(mutex_);     // the entry was taken as a victim and was in use
  void unpark(Entry& entry) EXCLUDES(mutex_);   // the entry may be a victim again
  void removed(Entry& entry) EXCLUDES(mutex_);  // always called before the Entry is erased
  // The entry's bytes came to memory or left it: it becomes a candidate of that tier, with the uses it has
  // had.
  void moved(Entry& entry, Entry::Tier tier) EXCLUDES(mutex_);

  // The inode number of the next victim of these owners, taken out of the policy: the caller gives it back
  // with park() or removed(). Fresh entries come last, and only with `even_fresh`.
  struct Victim {
    uint64_t ino;
    bool fresh;  // true when it was closed: if it has been published since, it is not a victim
  };
  std::optional<Victim> next_victim(bool even_fresh, const Owners& of = Owners().set()) EXCLUDES(mutex_);
  std::optional<uint64_t> next_cold(const Owners& of = Owners().set()) EXCLUDES(mutex_);
  // The next fresh entry, taken out of the list, that is old enough (1 s) for the pool to publish it. The
  // number may be stale.
  std::optional<uint64_t> next_grown(uint64_t now_ms) EXCLUDES(mutex_);

  bool has_fresh() const EXCLUDES(mutex_);

  // Changes the policy and keeps the uses of every entry: all candidates move to the new policy.
  void set_policy(std::string_view name) EXCLUDES(mutex_);

 private:
  struct Fresh {
    uint64_t ino;
    uint64_t since_ms;
  };
  Policy& of(const Entry& entry) REQUIRES(mutex_) {
    return entry.tier == Entry::Tier::kCold ? *cold_ : *policy_;
  }
  // The policy that orders the entry, its clock advanced to the other policy's.
  Policy& following(const Entry& entry) REQUIRES(mutex_);
  void put_fresh(const Entry& entry) REQUIRES(mutex_);
  // Takes out the oldest of these owners' fresh entries if it is as old as that.
  std::optional<uint64_t> oldest_fresh(const Owners& of, uint64_t until_ms) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::unique_ptr<Policy> policy_ GUARDED_BY(mutex_);
  std::unique_ptr<Policy> cold_ GUARDED_BY(mutex_);
  // By owner; some have been published by now, or have another owner.
  std::vector<std::deque<Fresh>> fresh_ GUARDED_BY(mutex_);
  size_t fresh_entries_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
