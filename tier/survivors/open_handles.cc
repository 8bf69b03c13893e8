#include "tier/survivors/open_handles.h"

#include "base/fault_point.h"

namespace kvcachefs {
namespace {

constexpr int kPlaceBits = SurvivorTable<OpenHandles::Record>::kPlaceBits;

uint32_t place_of(uint64_t handle) {
  return handle & ((1 << kPlaceBits) - 1);
}

}  // namespace

OpenHandles::OpenHandles(Shared* shared) {
  if (shared != nullptr) records_.emplace(*shared);
}

void OpenHandles::begin_generation() {
  if (records_) records_->find_free();
}

Result<uint64_t> OpenHandles::opened(const OpenHandle& handle) {
  if (!records_) return uint64_t{0};
  if (const int error = injected_error("write down an open")) return fail(error);
  const auto place = records_->take();
  if (!place) return fail(ENFILE, "too many files are open");
  Record& record = (*records_)[*place];
  record.unique = handle.unique;
  record.writer = handle.writer ? 1 : 0;
  record.from_disk = handle.from_disk ? 1 : 0;
  if (++record.sequence == 0) ++record.sequence;
  const uint64_t opened = uint64_t{record.sequence} << kPlaceBits | *place;
  record.key = handle.inode.key();  // from here on another thread may close it
  return opened;
}

bool OpenHandles::is_open(uint64_t handle) {
  if (!records_) return true;
  const Record& record = (*records_)[place_of(handle)];
  return record.key != 0 && record.sequence == handle >> kPlaceBits;
}

void OpenHandles::closed(uint64_t handle) {
  if (records_ && is_open(handle)) records_->free(place_of(handle));
}

std::optional<OpenHandles::Opened> OpenHandles::opened_by(uint64_t unique) {
  if (unique == 0) return std::nullopt;
  for (uint32_t place = 0; place < used(); ++place) {
    const Record& record = (*records_)[place];
    if (const uint64_t key = record.key; key != 0 && record.unique == unique)
      return Opened{uint64_t{record.sequence} << kPlaceBits | place, PoolInode::from_key(key),
                    record.from_disk != 0};
  }
  return std::nullopt;
}

void OpenHandles::for_each(const std::function<void(const OpenHandle&)>& visit) {
  for (uint32_t place = 0; place < used(); ++place) {
    const Record& record = (*records_)[place];
    if (const uint64_t key = record.key; key != 0)
      visit({.inode = PoolInode::from_key(key),
             .unique = record.unique,
             .writer = record.writer != 0,
             .from_disk = record.from_disk != 0});
  }
}

}  // namespace kvcachefs
