#include "tier/survivors/backing_ids.h"

#include <algorithm>

namespace kvcachefs {

BackingIds::BackingIds(Shared* shared) : shared_(shared) {
  if (shared != nullptr) records_.emplace(shared->records);
}

void BackingIds::begin_generation() {
  if (!records_) return;
  records_->find_free();
  MutexLock lock(mutex_);
  place_of_.clear();
  for (uint32_t place = 0; place < records_->used(); ++place)
    if ((*records_)[place].key != 0) place_of_[(*records_)[place].id] = place;
}

Result<void> BackingIds::held(const HeldBacking& backing) {
  if (!records_) return {};
  const auto place = records_->take();
  if (!place) return fail(ENFILE, "too many files are open");
  Record& record = (*records_)[*place];
  record.id = backing.id;
  record.closing = 0;
  record.key = backing.inode.key();
  MutexLock lock(mutex_);
  place_of_[backing.id] = *place;
  shared_->highest = std::max<int32_t>(shared_->highest, backing.id);
  return {};
}

void BackingIds::giving_back(int32_t id) {
  if (!records_) return;
  MutexLock lock(mutex_);
  if (const auto found = place_of_.find(id); found != place_of_.end()) (*records_)[found->second].closing = 1;
}

void BackingIds::given_back(int32_t id) {
  if (!records_) return;
  uint32_t place = 0;
  {
    MutexLock lock(mutex_);
    const auto found = place_of_.extract(id);
    if (!found) return;
    place = found.mapped();
  }
  records_->free(place);
}

void BackingIds::for_each(const std::function<void(const HeldBacking&, bool closing)>& visit) {
  for (uint32_t place = 0; records_ && place < records_->used(); ++place) {
    const Record& record = (*records_)[place];
    if (const uint64_t key = record.key; key != 0)
      visit({.inode = PoolInode::from_key(key), .id = record.id}, record.closing != 0);
  }
}

int32_t BackingIds::highest() const {
  return shared_ != nullptr ? shared_->highest.load() : 0;
}

}  // namespace kvcachefs
