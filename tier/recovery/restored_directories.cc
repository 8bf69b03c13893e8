#include "tier/recovery/restored_directories.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "base/progress.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// Directories stay open while their files are made: a pool's entries mostly lie in few directories.
constexpr size_t kOpenDirectories = 512;

// No earlier than the times that files have got: some of those are finer than a tick (Linux 6.13).
timespec file_time() {
  timespec now{};
  (void)::clock_gettime(CLOCK_REALTIME, &now);
  return now;
}

bool is_later(const timespec& time, const timespec& than) {
  return std::pair(time.tv_sec, time.tv_nsec) > std::pair(than.tv_sec, than.tv_nsec);
}

}  // namespace

void RestoredDirectories::add(const CatalogNode& node, sys::Handle handle) {
  handles_[node.id] = handle;
  times_.push_back({handle, node.id, node.accessed, node.modified});
}

Result<int> RestoredDirectories::open(uint64_t id) {
  if (id == kCatalogRoot) return arena_.tree_fd();
  if (auto found = open_.find(id); found != open_.end()) return found->second.get();
  auto known = handles_.find(id);
  if (known == handles_.end()) return fail(ENOENT);
  if (open_.size() >= kOpenDirectories) open_.clear();
  auto fd = arena_.open(known->second, O_RDONLY | O_DIRECTORY);
  if (!fd) return pass(fd);
  return open_.emplace(id, std::move(*fd)).first->second.get();
}

void RestoredDirectories::are_served() {
  served_since_ = file_time();
}

void RestoredDirectories::to_be_filled(std::span<const CatalogName> names) {
  if (!served_since_) return;
  for (const CatalogName& name : names)
    if (const auto directory = open(name.parent)) (void)was_changed(name.parent, *directory);
}

void RestoredDirectories::filled(std::span<const CatalogName> names) {
  if (!served_since_) return;
  for (const CatalogName& name : names) {
    auto directory = open(name.parent);
    const auto attributes = directory ? sys::stat_of(*directory) : pass(directory);
    if (attributes) filled_[name.parent] = attributes->st_mtim;
  }
}

bool RestoredDirectories::was_changed(uint64_t id, int directory) {
  if (!served_since_) return false;
  if (changed_.contains(id)) return true;
  const auto attributes = sys::stat_of(directory);
  if (!attributes) return true;
  const auto found = filled_.find(id);
  const bool changed = is_later(attributes->st_mtim, found == filled_.end() ? *served_since_ : found->second);
  if (changed) changed_.insert(id);
  return changed;
}

void RestoredDirectories::put_times(const std::function<void(int directory)>& done) {
  for (const Times& its : times_) {
    count_step();
    auto fd = arena_.open(its.handle, O_RDONLY | O_DIRECTORY);
    if (!fd || was_changed(its.id, fd->get())) continue;
    (void)sys::change_times(fd->get(), {its.accessed, its.modified});
    done(fd->get());
  }
}

}  // namespace kvcachefs
