// The room in a pool's index: a part of the pool's size for all users, and a share of that (user_share) for
// each. The owner of the index calls it under the index's lock. Never fails.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <unordered_map>

#include "alloc/memory_arena.h"
#include "tier/entries/shares.h"

namespace kvcachefs {

class IndexRoom {
 public:
  IndexRoom(MemoryArena& arena, const Shares& shares) : arena_(arena), shares_(shares) {}

  // Takes the estimated memory of an entry for its owner. Returns false if the index or the share is full.
  // `leaving_bytes`: the part of the index's memory that becomes free when this is taken.
  bool take(uid_t uid, uint64_t bytes, uint64_t leaving_bytes = 0);
  void give_back(uid_t uid, uint64_t bytes);
  // Returns true, once, when there is room for the least that was refused, to all users or to one.
  bool has_room_for_refused();
  uint64_t most_bytes() const;

 private:
  uint64_t bytes_of(uid_t uid) const;

  MemoryArena& arena_;
  const Shares& shares_;
  uint64_t least_refused_bytes_ = UINT64_MAX;
  std::unordered_map<uid_t, uint64_t> bytes_;  // of users who have something
  // The least that was refused to a user only for the share. These users are few, while a pool may have many.
  std::unordered_map<uid_t, uint64_t> refused_bytes_;
};

}  // namespace kvcachefs
