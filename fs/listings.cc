#include "fs/listings.h"

#include <iterator>
#include <utility>

namespace kvcachefs {

size_t Listings::bytes_of(const Kept& kept) {
  constexpr size_t kBookkeepingBytes = 256;
  return kept.names->bytes() + kBookkeepingBytes;
}

void Listings::erase(std::list<Kept>::iterator kept) {
  bytes_ -= bytes_of(*kept);
  by_handle_.erase(kept->handle);
  kept_.erase(kept);
}

Listings::Names Listings::find(uint64_t handle, uint64_t place) {
  MutexLock lock(mutex_);
  const auto found = by_handle_.find(handle);
  if (found == by_handle_.end() || !found->second->names->covers(place)) return nullptr;
  kept_.splice(kept_.begin(), kept_, found->second);
  return found->second->names;
}

void Listings::keep(uint64_t handle, Names names) {
  if (handle == 0) return;
  MutexLock lock(mutex_);
  if (const auto found = by_handle_.find(handle); found != by_handle_.end()) erase(found->second);
  kept_.push_front({handle, std::move(names)});
  by_handle_[handle] = kept_.begin();
  bytes_ += bytes_of(kept_.front());
  while (bytes_ > limit_bytes_) erase(std::prev(kept_.end()));
}

void Listings::drop(uint64_t handle) {
  MutexLock lock(mutex_);
  if (const auto found = by_handle_.find(handle); found != by_handle_.end()) erase(found->second);
}

size_t Listings::kept_bytes() const {
  MutexLock lock(mutex_);
  return bytes_;
}

}  // namespace kvcachefs
