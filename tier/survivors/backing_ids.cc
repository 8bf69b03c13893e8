#include "tier/survivors/backing_ids.h"

#include <algorithm>
#include <utility>

namespace kvcachefs {

void BackingIds::begin_generation() {
  records_.find_free();
  std::unordered_map<int32_t, uint32_t> places;
  records_.for_each([&](uint32_t place, PoolInode, const Record& record) { places[record.id] = place; });
  MutexLock lock(mutex_);
  place_of_ = std::move(places);
}

Result<void> BackingIds::held(const HeldBacking& backing) {
  if (!records_) return {};
  const auto place = records_.take();
  if (!place) return fail(ENFILE, "too many files are open");
  Record& record = records_[*place];
  record.id = backing.id;
  record.closing = 0;
  record.key = backing.inode.key();
  MutexLock lock(mutex_);
  place_of_[backing.id] = *place;
  shared_->highest = std::max<int32_t>(shared_->highest, backing.id);
  return {};
}

void BackingIds::giving_back(int32_t id) {
  MutexLock lock(mutex_);
  if (const auto found = place_of_.find(id); found != place_of_.end()) records_[found->second].closing = 1;
}

void BackingIds::given_back(int32_t id) {
  uint32_t place = 0;
  {
    MutexLock lock(mutex_);
    const auto found = place_of_.extract(id);
    if (!found) return;
    place = found.mapped();
  }
  records_.free(place);
}

void BackingIds::connection_ended() {
  if (shared_ == nullptr) return;
  records_.for_each([&](uint32_t place, PoolInode, const Record&) { records_.free(place); });
  shared_->highest = 0;
}

void BackingIds::for_each(const std::function<void(const HeldBacking&, bool closing)>& visit) {
  records_.for_each([&](uint32_t, PoolInode inode, const Record& record) {
    visit({inode, record.id}, record.closing != 0);
  });
}

}  // namespace kvcachefs
