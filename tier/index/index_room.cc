#include "tier/index/index_room.h"

#include <algorithm>
#include <iterator>

namespace kvcachefs {
namespace {

// A pool of 2 MiB entries of 256 tokens needs a 1,600th of its size.
constexpr uint64_t kShareOfPool = 32;
constexpr uint64_t kLeastIndexBytes = 1 << 20;

// An eighth is left free, so that one that leaves does not have all looked at for one that comes; for one
// that takes more than that leaves, half of what is beside it.
bool has_room_again(uint64_t bytes, uint64_t& least_refused_bytes, uint64_t most_bytes) {
  if (least_refused_bytes > most_bytes) return false;
  const uint64_t beside = most_bytes - least_refused_bytes;
  if (bytes > std::max(beside - std::min(beside, most_bytes / 8), beside / 2)) return false;
  least_refused_bytes = UINT64_MAX;
  return true;
}

}  // namespace

bool IndexRoom::take(uid_t uid, uint64_t bytes) {
  const uint64_t most = most_bytes();
  if (arena_.index_bytes() + bytes > most) {
    least_refused_bytes_ = std::min(least_refused_bytes_, bytes);
    return false;
  }
  User& user = users_[uid];
  if (user.bytes + bytes > shares_.share_of(most)) {
    user.least_refused_bytes = std::min(user.least_refused_bytes, bytes);
    return false;
  }
  user.bytes += bytes;
  return true;
}

void IndexRoom::give_back(uid_t uid, uint64_t bytes) {
  const auto user = users_.find(uid);
  user->second.bytes -= bytes;
  if (user->second.bytes == 0 && user->second.least_refused_bytes == UINT64_MAX) users_.erase(user);
}

bool IndexRoom::has_room_for_refused() {
  const uint64_t most = most_bytes(), share = shares_.share_of(most);
  bool result = has_room_again(arena_.index_bytes(), least_refused_bytes_, most);
  for (auto each = users_.begin(); each != users_.end();) {
    User& user = each->second;
    if (has_room_again(user.bytes, user.least_refused_bytes, share)) result = true;
    const bool is_known = user.bytes > 0 || user.least_refused_bytes != UINT64_MAX;
    each = is_known ? std::next(each) : users_.erase(each);
  }
  return result;
}

uint64_t IndexRoom::most_bytes() const {
  const uint64_t size_bytes = arena_.usage().size_bytes;
  return std::max(size_bytes / kShareOfPool, std::min(size_bytes / 4, kLeastIndexBytes));
}

}  // namespace kvcachefs
