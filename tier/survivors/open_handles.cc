#include "tier/survivors/open_handles.h"

#include <fmt/format.h>

#include <utility>

#include "base/fault_point.h"

namespace kvcachefs {
namespace {

constexpr int kPlaceBits = SurvivorTable<OpenHandles::Record>::kPlaceBits;

uint32_t place_of(uint64_t handle) {
  return handle & ((1 << kPlaceBits) - 1);
}

}  // namespace

bool OpenHandles::charge(uid_t user) {
  MutexLock lock(mutex_);
  uint32_t& opens = opens_of_user_[user];
  if (opens == kShareOfUser) return false;
  ++opens;
  return true;
}

void OpenHandles::give_back(uid_t user) {
  const auto opens = opens_of_user_.find(user);
  if (--opens->second == 0) opens_of_user_.erase(opens);
}

Result<uint64_t> OpenHandles::opened(const OpenHandle& handle) {
  if (!records_) return uint64_t{0};
  if (const int error = injected_error("write down an open")) return fail(error);
  if (!charge(handle.user))
    return fail(EMFILE, fmt::format("user {}: {} files are open already, and no more may be", handle.user,
                                    kShareOfUser));
  const auto place = records_.take();
  {
    MutexLock lock(mutex_);
    if (!place) give_back(handle.user);
    if (place && users_.size() <= *place) users_.resize(*place + 1);
    if (place) users_[*place] = handle.user;
  }
  if (!place) return fail(ENFILE, "too many files are open");
  Record& record = records_[*place];
  record.unique = handle.unique;
  record.writer = handle.writer ? kWriter : kReader;
  record.from_disk = handle.from_disk ? 1 : 0;
  if (++record.sequence == 0) ++record.sequence;
  const uint64_t opened = uint64_t{record.sequence} << kPlaceBits | *place;
  record.key = handle.inode.key();  // from here on another thread may close it
  return opened;
}

bool OpenHandles::is_open(uint64_t handle) {
  if (!records_) return true;
  const Record& record = records_[place_of(handle)];
  return record.key != 0 && record.sequence == handle >> kPlaceBits;
}

std::optional<uid_t> OpenHandles::closed(uint64_t handle) {
  std::optional<uid_t> user;
  if (!records_ || !is_open(handle)) return user;
  const uint32_t place = place_of(handle);
  {
    MutexLock lock(mutex_);
    if (place < users_.size()) user = std::exchange(users_[place], std::nullopt);
    if (user) give_back(*user);
  }
  records_.free(place);
  return user;
}

std::optional<OpenHandles::Opened> OpenHandles::opened_by(uint64_t unique) {
  std::optional<Opened> found;
  if (unique == 0) return found;
  records_.for_each([&](uint32_t place, PoolInode inode, const Record& record) {
    if (!found && record.unique == unique)
      found = {uint64_t{record.sequence} << kPlaceBits | place, inode, record.from_disk != 0};
  });
  return found;
}

void OpenHandles::for_each(const std::function<void(const OpenHandle&)>& visit) {
  records_.for_each([&](uint32_t place, PoolInode inode, const Record& record) {
    const uint64_t handle = uint64_t{record.sequence} << kPlaceBits | place;
    visit({.inode = inode,
           .unique = record.unique,
           .writer = record.writer != kReader,
           .from_disk = record.from_disk != 0,
           .lost = record.writer == kLostWriter ? handle : 0});
  });
}

void OpenHandles::connection_ended() {
  records_.for_each([&](uint32_t place, PoolInode, const Record&) {
    Record& record = records_[place];
    record.unique = 0;
    if (record.writer == kReader)
      records_.free(place);
    else
      record.writer = kLostWriter;
  });
}

}  // namespace kvcachefs
