// NamesToCome has the names of a pool's catalog that the restore still brings back while the pool is served.
// None of them is a miss or free to take: a request that has such a name waits until it is back, and the
// restore brings it back next. The restorer's thread fills it, begins, goes on and ends; all else is for any
// thread. Failure: EIO for what a restore that has ended early did not bring back.
//
// A name takes 16 bytes: it is kept as a hash. Two names with one hash wait for each other, and no more.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "base/mutex.h"
#include "base/result.h"
#include "tier/pool/waiting_lane.h"

namespace kvcachefs {

class NamesToCome {
 public:
  // --- the restorer ---
  void add_directory(uint64_t ino, uint64_t id) { filling_->directories[ino] = id; }
  void add(uint64_t parent_id, std::string_view name, uint64_t id);
  void begin() EXCLUDES(mutex_);
  // All that have a number up to this one are back, or will not come.
  void came_to(uint64_t id) { reached_.store(id, std::memory_order_release); }
  uint64_t reached() const { return reached_.load(std::memory_order_acquire); }
  // The number to be brought back next, for which it waits for so long; 0: none. The one before is back now.
  uint64_t next_wanted(std::chrono::milliseconds at_most = {}) EXCLUDES(mutex_);
  bool is_back(uint64_t id) const EXCLUDES(mutex_);
  enum class Outcome : uint8_t { kAllAreBack, kSomeAreNot };
  void end(Outcome outcome) EXCLUDES(mutex_);

  // --- requests ---
  bool any() const { return state_.load(std::memory_order_acquire) != State::kNone; }
  // The number of what is to come under this name; 0: nothing.
  uint64_t to_come(uint64_t directory_ino, std::string_view name) const EXCLUDES(mutex_);
  // The call returns when what has the number is back. EIO: it will not be.
  Result<void> await(uint64_t id) EXCLUDES(mutex_);
  // What waits does so in threads of this lane, if it can (fs/awaited_names.h).
  WaitingLane& lane() { return lane_; }

 private:
  struct Name {
    uint64_t hash;
    uint64_t id;
  };
  struct Index {
    std::unordered_map<uint64_t, uint64_t> directories;  // numbers in the catalog, by inode number
    std::vector<Name> names;                             // by hash
  };
  enum class State : uint8_t { kNone, kComing, kFailed };

  std::shared_ptr<Index> filling_ = std::make_shared<Index>();  // the restorer's
  std::atomic<State> state_{State::kNone};
  std::atomic<uint64_t> reached_{0};
  std::atomic<bool> any_wanted_{false};
  mutable Mutex mutex_;
  Condition wanted_, back_;
  std::shared_ptr<const Index> index_ GUARDED_BY(mutex_);
  std::unordered_set<uint64_t> early_ GUARDED_BY(mutex_);  // back out of turn
  std::deque<uint64_t> queue_ GUARDED_BY(mutex_);          // wanted; the first is in hand if in_hand_
  bool in_hand_ GUARDED_BY(mutex_) = false;
  WaitingLane lane_;
};

}  // namespace kvcachefs
