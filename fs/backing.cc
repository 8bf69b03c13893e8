#include "fs/backing.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/fault_point.h"
#include "base/progress.h"
#include "base/sys.h"
#include "fs/newer_fuse.h"

namespace kvcachefs {
namespace {

constexpr int32_t kUnwritten = 2048;  // twice the number of threads that there can be

void close_id(int device_fd, int32_t id) {
  auto wire_id = static_cast<uint32_t>(id);
  (void)sys::control(device_fd, kBackingClose, &wire_id);
}

// The kernel numbers backing ids one after the other (idr_alloc_cyclic, fs/fuse/backing.c). An id that was
// acquired and not written down any more is therefore near the highest that was, and there is at most one for
// each thread.
void close_unwritten(int device_fd, Survivors& survivors, const std::set<int32_t>& live) {
  const int32_t highest = survivors.backing_ids().highest();
  for (int32_t id = std::max(1, highest - kUnwritten); id <= highest + kUnwritten; ++id)
    if (!live.contains(id)) close_id(device_fd, id);
}

}  // namespace

void close_backings(int device_fd, Survivors& survivors) {
  survivors.backing_ids().for_each(
      [&](const HeldBacking& backing, bool) { close_id(device_fd, backing.id); });
  close_unwritten(device_fd, survivors, {});
}

void SessionBacking::close_backing(int32_t id) {
  // The call fails only when the connection is gone, and the id with it.
  close_id(device_fd_, id);
}

void SessionBacking::take_over() {
  if (!passthrough_) return;
  std::set<std::pair<uint16_t, uint64_t>> open;
  survivors_.handles().for_each(
      [&](const OpenHandle& handle) { open.emplace(handle.inode.pool, handle.inode.ino); });
  std::set<int32_t> live;
  std::vector<int32_t> dead;
  survivors_.backing_ids().for_each([&](const HeldBacking& backing, bool closing) {
    if (!closing && open.contains({backing.inode.pool, backing.inode.ino}))
      live.insert(backing.id);
    else
      dead.push_back(backing.id);
  });
  for (const int32_t id : dead) {
    count_step();
    close_backing(id);
    survivors_.backing_ids().given_back(id);
  }
  close_unwritten(device_fd_, survivors_, live);
}

Result<int32_t> SessionBacking::acquire(int fd, PoolInode inode) {
  if (const int error = injected_error("back")) return fail(error);
  if (!passthrough_) {
    const auto attributes = sys::stat_of(fd);
    if (!attributes) return fail(attributes.error().code);
    auto charge = survivors_.descriptors().charge(attributes->st_uid, inode.pool);
    if (!charge) return pass(charge);
    auto copy = sys::duplicate(fd);
    if (!copy) return pass(copy);
    MutexLock lock(mutex_);
    charges_[copy->get()] = std::move(*charge);
    return copy->release();
  }
  FuseBackingMap map{.fd = fd, .flags = 0, .padding = 0};
  auto id = sys::control(device_fd_, kBackingOpen, &map);
  if (!id) return pass(id);
  if (auto written = survivors_.backing_ids().held({.inode = inode, .id = *id}); !written) {
    close_backing(*id);
    return pass(written);
  }
  return *id;
}

void SessionBacking::giving_back(int32_t backing) {
  if (passthrough_) survivors_.backing_ids().giving_back(backing);
}

void SessionBacking::give_back(int32_t backing) {
  if (!passthrough_) {
    DescriptorBudget::Charge charge;  // returned after the descriptor is closed
    {
      MutexLock lock(mutex_);
      if (auto found = charges_.extract(backing)) charge = std::move(found.mapped());
    }
    UniqueFd(backing).reset();
    return;
  }
  giving_back(backing);
  close_backing(backing);
  survivors_.backing_ids().given_back(backing);
}

}  // namespace kvcachefs
