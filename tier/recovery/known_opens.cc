#include "tier/recovery/known_opens.h"

#include <ranges>

namespace kvcachefs {

void KnownOpens::begin(Survivors& survivors, uint16_t pool) {
  MutexLock lock(mutex_);
  survivors.handles().for_each([&](const OpenHandle& handle) REQUIRES(mutex_) {
    if (handle.inode.pool != pool) return;
    Of& its = opens_[handle.inode.ino];
    ++its.facts.open_count;
    if (handle.writer) ++its.facts.writer_count;
    if (handle.from_disk) ++its.facts.direct_count;
    if (handle.lost == 0) return;
    lost_writers_.push_back(handle);
    if (!handle.from_disk) ++its.without_backing;
  });
  survivors.backing_ids().for_each([&](const HeldBacking& backing, bool) REQUIRES(mutex_) {
    if (backing.inode.pool == pool) backings_[backing.inode.ino] = backing.id;
  });
}

KnownOpens::Of KnownOpens::take(uint64_t ino) {
  MutexLock lock(mutex_);
  const auto opens = opens_.extract(ino);
  const auto backing = backings_.extract(ino);
  Of its = opens ? opens.mapped() : Of{};
  if (backing) its.backing = backing.mapped();
  return its;
}

bool KnownOpens::is_open(uint64_t ino) {
  MutexLock lock(mutex_);
  return opens_.contains(ino);
}

std::vector<int32_t> KnownOpens::end() {
  MutexLock lock(mutex_);
  const auto ids = std::views::values(backings_);
  std::vector<int32_t> left(ids.begin(), ids.end());
  backings_.clear();
  opens_.clear();
  return left;
}

}  // namespace kvcachefs
