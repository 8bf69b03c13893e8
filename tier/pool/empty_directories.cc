#include "tier/pool/empty_directories.h"

#include <algorithm>

#include "base/clock.h"

namespace kvcachefs {

// A tmpfs counts 20 bytes per name, and two names for an empty directory (BOGO_DIRENT_SIZE, mm/shmem.c).
constexpr off_t kEmptyDirectoryBytes = 40;

bool looks_empty(const struct stat& directory) {
  return directory.st_nlink > 0 && directory.st_size <= kEmptyDirectoryBytes;
}

bool is_at_top(const MemoryArena& arena, int directory) {
  auto parent = sys::open_parent(directory, O_PATH);
  const auto attributes = parent ? sys::stat_of(parent->get()) : pass(parent);
  return attributes && attributes->st_ino == arena.tree().ino;
}

void EmptyDirectories::rests(const Directory& directory, uint64_t now_ms) {
  MutexLock lock(mutex_);
  if (noted_.insert(directory.handle.ino).second) resting_.push_back({directory, now_ms});
}

void EmptyDirectories::emptied(const Directory& directory) {
  MutexLock lock(mutex_);
  if (noted_.insert(directory.handle.ino).second)
    (directory.at_top ? ripe_at_top_ : ripe_).push_back(directory);
}

bool EmptyDirectories::ask(const Directory& directory, bool by_name, uint64_t now_ms) {
  MutexLock lock(mutex_);
  if (!noted_.insert(directory.handle.ino).second) return false;
  asked_by_name_ += by_name ? 1 : 0;
  asked_[directory.handle.ino] = {.directory = directory, .asked_ms = now_ms, .by_name = by_name};
  return true;
}

std::optional<EmptyDirectories::Directory> EmptyDirectories::next_rested(uint64_t before_ms) {
  MutexLock lock(mutex_);
  if (resting_.empty() || resting_.front().since_ms > before_ms) return std::nullopt;
  const Directory next = resting_.front().directory;
  resting_.pop_front();
  noted_.erase(next.handle.ino);
  return next;
}

std::optional<EmptyDirectories::Directory> EmptyDirectories::next_ripe(bool even_at_top) {
  MutexLock lock(mutex_);
  std::deque<Directory>& ripe = ripe_.empty() && even_at_top ? ripe_at_top_ : ripe_;
  if (ripe.empty()) return std::nullopt;
  const Directory next = ripe.front();
  ripe.pop_front();
  noted_.erase(next.handle.ino);
  return next;
}

void EmptyDirectories::take_asked(uint64_t ino) {
  MutexLock lock(mutex_);
  if (const auto asked = asked_.find(ino); asked != asked_.end()) {
    heard_ms_ = now_coarse_ms();
    asked_by_name_ -= asked->second.by_name ? 1 : 0;
    asked_.erase(asked);
  }
  noted_.erase(ino);
}

bool EmptyDirectories::keeps(uid_t owner, sys::Handle handle,
                             const std::function<bool(sys::Handle)>& exists) {
  MutexLock lock(mutex_);
  std::deque<sys::Handle>& kept = kept_[owner];
  if (std::ranges::find(kept, handle.ino, &sys::Handle::ino) != kept.end()) return true;
  if (kept.size() == kKeptEach) {
    // One call checks one kept directory, the oldest; the others get their turn in later calls.
    const sys::Handle oldest = kept.front();
    kept.pop_front();
    if (exists(oldest)) {
      kept.push_back(oldest);
      return false;
    }
  }
  kept.push_back(handle);
  return true;
}

void EmptyDirectories::told(uint64_t ino, bool known) {
  MutexLock lock(mutex_);
  const auto found = asked_.find(ino);
  if (found == asked_.end()) return;
  found->second.told = true;
  found->second.known = known;
  heard_ms_ = now_coarse_ms();
}

std::vector<EmptyDirectories::Asked> EmptyDirectories::asked() const {
  MutexLock lock(mutex_);
  std::vector<Asked> all;
  all.reserve(asked_.size());
  for (const auto& [ino, asked] : asked_) all.push_back(asked);
  return all;
}

EmptyDirectories::Counts EmptyDirectories::counts() const {
  MutexLock lock(mutex_);
  return {.resting = resting_.size(),
          .ripe = ripe_.size() + ripe_at_top_.size(),
          .asked = asked_.size(),
          .asked_by_name = asked_by_name_,
          .heard_ms = heard_ms_};
}

}  // namespace kvcachefs
