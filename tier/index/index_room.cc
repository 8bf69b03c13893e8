#include "tier/index/index_room.h"

#include <algorithm>

namespace kvcachefs {
namespace {

// A pool of 2 MiB entries of 256 tokens needs a 1,600th of its size.
constexpr uint64_t kShareOfPool = 32;
constexpr uint64_t kLeastIndexBytes = 1 << 20;

// Refused entries are sought again only if an eighth of the index stays free beside the smallest of them, so
// that not each entry that leaves starts a seek. For a large entry it is enough that half of the rest is
// free.
bool has_room_again(uint64_t bytes, uint64_t least_refused_bytes, uint64_t most_bytes) {
  if (least_refused_bytes > most_bytes) return false;
  const uint64_t beside = most_bytes - least_refused_bytes;
  return bytes <= std::max(beside - std::min(beside, most_bytes / 8), beside / 2);
}

}  // namespace

bool IndexRoom::take(uid_t uid, uint64_t bytes, uint64_t leaving_bytes) {
  const uint64_t most = most_bytes();
  if (arena_.index_bytes() + bytes > most + leaving_bytes) {
    least_refused_bytes_ = std::min(least_refused_bytes_, bytes);
    return false;
  }
  if (bytes_of(uid) + bytes > shares_.share_of(most)) {
    uint64_t& least = refused_bytes_.try_emplace(uid, bytes).first->second;
    least = std::min(least, bytes);
    return false;
  }
  bytes_[uid] += bytes;
  return true;
}

void IndexRoom::give_back(uid_t uid, uint64_t bytes) {
  const auto its = bytes_.find(uid);
  its->second -= bytes;
  if (its->second == 0) bytes_.erase(its);
}

uint64_t IndexRoom::bytes_of(uid_t uid) const {
  const auto its = bytes_.find(uid);
  return its == bytes_.end() ? 0 : its->second;
}

bool IndexRoom::has_room_for_refused() {
  const uint64_t most = most_bytes(), share = shares_.share_of(most);
  const bool result = has_room_again(arena_.index_bytes(), least_refused_bytes_, most);
  if (result) least_refused_bytes_ = UINT64_MAX;
  const auto come = std::erase_if(refused_bytes_, [&](const auto& each) {
    return has_room_again(bytes_of(each.first), each.second, share);
  });
  return result || come > 0;
}

uint64_t IndexRoom::most_bytes() const {
  const uint64_t size_bytes = arena_.usage().size_bytes;
  return std::max(size_bytes / kShareOfPool, std::min(size_bytes / 4, kLeastIndexBytes));
}

}  // namespace kvcachefs
