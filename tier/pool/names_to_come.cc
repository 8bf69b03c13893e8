#include "tier/pool/names_to_come.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <span>

#include "base/checksum.h"

namespace kvcachefs {
namespace {

constexpr auto kLook = std::chrono::milliseconds(100);

uint64_t hash_of(uint64_t parent_id, std::string_view name) {
  std::array<std::byte, sizeof parent_id + NAME_MAX> bytes;
  const size_t name_bytes = std::min<size_t>(name.size(), NAME_MAX);
  std::memcpy(bytes.data(), &parent_id, sizeof parent_id);
  std::memcpy(bytes.data() + sizeof parent_id, name.data(), name_bytes);
  return checksum_of(std::span(bytes).first(sizeof parent_id + name_bytes)).low;
}

}  // namespace

void NamesToCome::add(uint64_t parent_id, std::string_view name, uint64_t id) {
  filling_->names.push_back({hash_of(parent_id, name), id});
}

void NamesToCome::begin() {
  std::ranges::sort(filling_->names, {}, &Name::hash);
  MutexLock lock(mutex_);
  index_ = std::move(filling_);
  state_.store(State::kComing, std::memory_order_release);
}

uint64_t NamesToCome::next_wanted(std::chrono::milliseconds at_most) {
  if (!any_wanted_.load(std::memory_order_acquire) && at_most.count() == 0) return 0;
  MutexLock lock(mutex_);
  if (in_hand_) {
    early_.insert(queue_.front());
    queue_.pop_front();
    in_hand_ = false;
    back_.notify_all();
  }
  if (queue_.empty() && at_most.count() > 0) wanted_.wait_for(mutex_, at_most);
  in_hand_ = !queue_.empty();
  any_wanted_.store(in_hand_, std::memory_order_release);
  return in_hand_ ? queue_.front() : 0;
}

bool NamesToCome::is_back(uint64_t id) const {
  if (id <= reached()) return true;
  MutexLock lock(mutex_);
  return early_.contains(id);
}

void NamesToCome::end(Outcome outcome) {
  MutexLock lock(mutex_);
  if (state_ == State::kNone) {
    filling_ = std::make_shared<Index>();
    return;
  }
  queue_.clear();
  in_hand_ = false;
  any_wanted_ = false;
  if (outcome == Outcome::kAllAreBack) {
    index_ = nullptr;
    early_ = {};
    reached_ = UINT64_MAX;
    state_ = State::kNone;
  } else {
    state_ = State::kFailed;
  }
  back_.notify_all();
}

uint64_t NamesToCome::to_come(uint64_t directory_ino, std::string_view name) const {
  if (!any()) return 0;
  std::shared_ptr<const Index> index;
  {
    MutexLock lock(mutex_);
    index = index_;
  }
  if (index == nullptr) return 0;
  const auto directory = index->directories.find(directory_ino);
  if (directory == index->directories.end()) return 0;
  const auto same = std::ranges::equal_range(index->names, hash_of(directory->second, name), {}, &Name::hash);
  for (const Name& found : same)
    if (!is_back(found.id)) return found.id;
  return 0;
}

Result<void> NamesToCome::await(uint64_t id) {
  MutexLock lock(mutex_);
  const auto is_there = [&]() REQUIRES(mutex_) { return id <= reached() || early_.contains(id); };
  if (state_ == State::kComing && !is_there() && std::ranges::find(queue_, id) == queue_.end()) {
    queue_.push_back(id);
    any_wanted_.store(true, std::memory_order_release);
    wanted_.notify_one();
  }
  while (state_ == State::kComing && !is_there()) back_.wait_for(mutex_, kLook);
  return is_there() ? Result<void>() : fail(EIO);
}

}  // namespace kvcachefs
