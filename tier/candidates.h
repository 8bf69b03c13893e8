// Which entries may leave and in what order: the pool's policy over those in memory, and before it the fresh
// ones (tier/entry.h); and the same policy over the cold ones, which leave the disk.
// Any thread; called with the entry's shard held, and takes its own lock below it. Never fails. What has lost
// its last name (Entry::removed) is never taken in again, whoever closes or unpins it: it may go at any
// moment.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/mutex.h"
#include "tier/entry.h"

namespace kvcachefs {

class Candidates {
 public:
  explicit Candidates(std::string_view policy);

  // Its last writer has closed it and nobody has named it for good yet: renamed() or a second of age
  // publishes it.
  void fresh(Entry& entry) EXCLUDES(mutex_);
  void publish(Entry& entry) EXCLUDES(mutex_);  // now an ordinary candidate
  void opened(Entry& entry) EXCLUDES(mutex_);
  void reprioritised(Entry& entry, int priority) EXCLUDES(mutex_);
  void park(Entry& entry) EXCLUDES(mutex_);     // taken as a victim and found in use
  void unpark(Entry& entry) EXCLUDES(mutex_);   // may be a victim again
  void removed(Entry& entry) EXCLUDES(mutex_);  // before its Entry goes, always
  // Its bytes came to memory, or went: it is a candidate there, with what it has earned.
  void moved(Entry& entry, Entry::Tier tier) EXCLUDES(mutex_);

  // The next victim's inode number, taken out of the policy: give it back with park() or removed(). Fresh
  // ones come last, and only if asked for.
  struct Victim {
    uint64_t ino;
    bool fresh;  // as of when it was closed: it may have been published since, and is no victim then
  };
  std::optional<Victim> next_victim(bool even_fresh) EXCLUDES(mutex_);
  std::optional<uint64_t> next_cold() EXCLUDES(mutex_);
  // Fresh entries that have become old enough to be published by their owner.
  std::optional<uint64_t> next_grown(uint64_t now_ms) EXCLUDES(mutex_);

  bool has_fresh() const EXCLUDES(mutex_);

  std::string policy() const EXCLUDES(mutex_);
  // Keeps what every entry has earned: entries in the policy's hands move over.
  void set_policy(std::string_view name) EXCLUDES(mutex_);
  size_t size() const EXCLUDES(mutex_);

 private:
  struct Fresh {
    uint64_t ino;
    uint64_t since_ms;
  };
  Policy& of(const Entry& entry) REQUIRES(mutex_) {
    return entry.tier == Entry::Tier::kCold ? *cold_ : *policy_;
  }
  // The policy that has it, its clock as far as the other's.
  Policy& following(const Entry& entry) REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::string name_ GUARDED_BY(mutex_);
  std::unique_ptr<Policy> policy_ GUARDED_BY(mutex_);
  std::unique_ptr<Policy> cold_ GUARDED_BY(mutex_);
  std::deque<Fresh> fresh_ GUARDED_BY(mutex_);  // with numbers of those that have been published since
  size_t fresh_entries_ GUARDED_BY(mutex_) = 0;
};

}  // namespace kvcachefs
