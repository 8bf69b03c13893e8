// EntryGroups: which entries belong together (user.kv.group). A group is of one user, so that no user's
// entries leave with another user's. Any thread; the lock is a leaf. Never fails; the index counts what
// members and groups take.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/mutex.h"

namespace kvcachefs {

class EntryGroups {
 public:
  // With what the allocator adds: a member, and a group besides its members.
  static constexpr uint64_t kMemberBytes = 100;
  static uint64_t group_bytes(std::string_view name) { return 400 + 2 * name.size(); }
  // Of more members the others live and die alone: a look at all of a group, with the lock held, takes 1 ms.
  static constexpr size_t kMostMembers = 16'384;

  // The bytes that this takes, and gives back; join(): 0: the group is full.
  uint64_t join(uint64_t ino, uid_t user, std::string_view name) EXCLUDES(mutex_);
  uint64_t leave(uint64_t ino) EXCLUDES(mutex_);
  // A member was used. All of its group are used with it, once a second at most: a client that opens one
  // after the other would have each of a group of thousands touched thousands of times.
  void opened(uint64_t ino) EXCLUDES(mutex_);
  // The members of the next group that was used, one of them perhaps gone by now.
  std::optional<std::vector<uint64_t>> next_used() EXCLUDES(mutex_);

  // A group, also after a member has left it.
  struct Group;
  std::shared_ptr<const Group> of(uint64_t ino) const EXCLUDES(mutex_);
  std::vector<uint64_t> members(const Group& group) const EXCLUDES(mutex_);
  static std::string_view name_of(const Group& group);

 private:
  mutable Mutex mutex_;
  std::atomic<uint64_t> members_{0};  // without one no caller takes the lock
  std::map<std::pair<uid_t, std::string>, std::shared_ptr<Group>> groups_ GUARDED_BY(mutex_);
  std::unordered_map<uint64_t, std::shared_ptr<Group>> by_member_ GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Group>> used_ GUARDED_BY(mutex_);
};

}  // namespace kvcachefs
