#include "alloc/deep_names.h"

#include <algorithm>

#include "alloc/memory_arena.h"
#include "base/clock.h"
#include "base/progress.h"

namespace kvcachefs {
namespace {

constexpr size_t kNamesAtOnce = 256;
// A walk takes some 2 us a name. After it the evictor's thread does other things for so many times as long,
// whatever users do to have their names sought.
constexpr uint64_t kRestShare = 8;

}  // namespace

std::optional<DeepNames::Place> DeepNames::find(uint64_t ino) {
  MutexLock lock(mutex_);
  if (const auto found = found_.find(ino); found != found_.end()) return found->second.back();
  if (wanted_.size() < kMost && !sought_.contains(ino)) wanted_.insert(ino);
  return std::nullopt;
}

void DeepNames::drop(uint64_t ino, const Place& place) {
  MutexLock lock(mutex_);
  const auto found = found_.find(ino);
  if (found == found_.end()) return;
  found_names_ -= std::erase(found->second, place);
  if (found->second.empty()) found_.erase(found);
}

bool DeepNames::seeks() const {
  MutexLock lock(mutex_);
  return !wanted_.empty() || !sought_.empty();
}

bool DeepNames::step(const MemoryArena& arena, uint64_t piece_ns) {
  const uint64_t begun_ns = now_ns();
  if (!walking_ && !begin_walk(arena)) return false;
  do {
    if (!stream_ && !open_next(arena)) {
      spent_ns_ += now_ns() - begun_ns;
      end_walk();
      return true;
    }
    take(read_some());
  } while (now_ns() - begun_ns < piece_ns);
  spent_ns_ += now_ns() - begun_ns;
  return true;
}

bool DeepNames::begin_walk(const MemoryArena& arena) {
  MutexLock lock(mutex_);
  if (wanted_.empty() || now_ns() < next_walk_ns_) return false;
  sought_ = std::exchange(wanted_, {});
  found_.clear();
  found_names_ = 0;
  spent_ns_ = 0;
  walking_ = true;
  pending_ = {arena.tree()};
  return true;
}

void DeepNames::end_walk() {
  next_walk_ns_ = now_ns() + kRestShare * spent_ns_;
  walking_ = false;
  pending_ = {};
  MutexLock lock(mutex_);
  sought_ = {};
}

bool DeepNames::open_next(const MemoryArena& arena) {
  while (!pending_.empty()) {
    directory_ = pending_.back();
    pending_.pop_back();
    auto fd = arena.open(directory_, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_NOATIME);
    if (!fd) continue;  // removed meanwhile
    stream_ = sys::stream_of(std::move(*fd));
    if (stream_) return true;
  }
  return false;
}

DeepNames::Names DeepNames::read_some() {
  Names names;
  while (names.size() < kNamesAtOnce) {
    const auto next = sys::next_entry(stream_.get());
    const dirent* const record = next ? *next : nullptr;
    if (record == nullptr) break;
    const std::string_view name(record->d_name);
    if (name == "." || name == "..") continue;
    count_step();
    if (record->d_type == DT_DIR)
      if (const auto handle = sys::handle_at(::dirfd(stream_.get()), record->d_name))
        pending_.push_back(*handle);
    names.emplace_back(record->d_ino, name);
  }
  if (names.size() < kNamesAtOnce) stream_.reset();
  return names;
}

void DeepNames::take(Names names) {
  MutexLock lock(mutex_);
  for (auto& [ino, name] : names) {
    if (!sought_.contains(ino) || found_names_ == kMost) continue;
    found_[ino].push_back({directory_, std::move(name)});
    ++found_names_;
  }
}

}  // namespace kvcachefs
