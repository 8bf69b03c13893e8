// Room in a pool's index: a part of the pool's size for all, and of that a user's share (user_share) for
// each. Who owns the index calls it under its lock. Never fails.
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

  // Of what entries take by estimate, for their owners; false: the index or the share is full.
  // `leaving_bytes` of what the index has now leave it when that is taken.
  bool take(uid_t uid, uint64_t bytes, uint64_t leaving_bytes = 0);
  void give_back(uid_t uid, uint64_t bytes);
  // Says once that there is room by now for the least that was refused, to all or to a user.
  bool has_room_for_refused();
  uint64_t most_bytes() const;

 private:
  uint64_t bytes_of(uid_t uid) const;

  MemoryArena& arena_;
  const Shares& shares_;
  uint64_t least_refused_bytes_ = UINT64_MAX;
  std::unordered_map<uid_t, uint64_t> bytes_;  // of users who have something
  // The least that was refused to a user for his share alone. Few, while a pool may have many users.
  std::unordered_map<uid_t, uint64_t> refused_bytes_;
};

}  // namespace kvcachefs
