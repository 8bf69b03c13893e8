#include "tier/recovery/restored_directories.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "base/progress.h"
#include "base/sys.h"

namespace kvcachefs {
namespace {

// Directories stay open while their files are made: a pool's entries mostly lie in few directories.
constexpr size_t kOpenDirectories = 512;
constexpr timespec kAsItIs{.tv_sec = 0, .tv_nsec = UTIME_OMIT};

}  // namespace

void RestoredDirectories::add(const CatalogNode& node, sys::Handle handle) {
  handles_[node.id] = handle;
  times_[node.id] = {node.accessed, node.modified};
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

void RestoredDirectories::put_times(Restoring& restoring) {
  for (const auto& [id, handle] : handles_) {
    count_step();
    if (restoring.was_changed(handle.ino)) continue;
    const Times& times = times_.at(id);
    if (auto fd = arena_.open(handle, O_RDONLY | O_DIRECTORY))
      (void)sys::change_times(fd->get(), {times.accessed, times.modified});
  }
}

bool RestoredDirectories::has_its_time(uint64_t id, int directory) const {
  const auto times = times_.find(id);
  const auto attributes = sys::stat_of(directory);
  return attributes && times != times_.end() && attributes->st_mtim.tv_sec == times->second.modified.tv_sec &&
         attributes->st_mtim.tv_nsec == times->second.modified.tv_nsec;
}

void RestoredDirectories::to_be_filled(std::span<const CatalogName> names) {
  to_be_put_back_.clear();
  for (const CatalogName& name : names) {
    const auto directory = open(name.parent);
    if (directory && has_its_time(name.parent, *directory)) to_be_put_back_.push_back(name.parent);
  }
}

void RestoredDirectories::filled() {
  for (const uint64_t id : to_be_put_back_)
    if (const auto directory = open(id))
      (void)sys::change_times(*directory, {kAsItIs, times_.at(id).modified});
}

void RestoredDirectories::visit(const std::function<void(int directory, bool is_changed)>& visit) {
  for (const auto& [id, handle] : handles_) {
    count_step();
    if (auto fd = arena_.open(handle, O_RDONLY | O_DIRECTORY)) visit(fd->get(), !has_its_time(id, fd->get()));
  }
}

}  // namespace kvcachefs
