#include "tier/survivors/requests.h"

#include <algorithm>

#include "base/clock.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kLatelyMs = 30'000;  // as in fs/stale_callers.h

constexpr uint32_t kNoRequest = UINT32_MAX;
thread_local uint32_t own_request = kNoRequest;
constexpr uint64_t kUniqueToCome = UINT64_MAX;  // no request's: a place that is being filled
thread_local uint32_t own_rename_place = 0;

bool is_lately(uint64_t at_ms, uint64_t now_ms) {
  return at_ms != 0 && now_ms - at_ms < kLatelyMs;
}

}  // namespace

uint32_t Requests::own_place() {
  if (own_request != kNoRequest) return own_request;
  MutexLock lock(mutex_);
  if (left_.empty()) return own_request = shared_->threads++ % kPlaces;
  own_request = left_.back();
  left_.pop_back();
  return own_request;
}

void Requests::begin(uint64_t unique, bool attempted) {
  if (shared_ == nullptr) return;
  auto& request = shared_->in_hand[own_place()];
  request.unique = 0;
  request.attempted = attempted ? 1 : 0;
  request.unique = unique;
  request.generation = shared_->generation.load();
  request.begun_ns = now_ns();
}

void Requests::end() {
  if (shared_ != nullptr && own_request != kNoRequest) shared_->in_hand[own_request].begun_ns = 0;
}

void Requests::leave() {
  end();
  if (shared_ == nullptr || own_request == kNoRequest) return;
  MutexLock lock(mutex_);
  left_.push_back(own_request);
  own_request = kNoRequest;
}

void Requests::still_at_it() {
  if (shared_ == nullptr || own_request == kNoRequest) return;
  if (auto& begun_ns = shared_->in_hand[own_request].begun_ns; begun_ns != 0) begun_ns = now_ns();
}

void Requests::attempt(uint64_t unique) {
  if (shared_ == nullptr || unique == 0) return;
  auto& request = shared_->in_hand[own_place()];
  if (request.unique != unique) {
    request.attempted = 0;
    request.unique = unique;
  }
  request.attempted = 1;
}

bool Requests::was_attempted(uint64_t unique) const {
  return shared_ != nullptr && std::ranges::any_of(shared_->in_hand, [unique](const auto& request) {
           return request.unique == unique && request.attempted != 0;
         });
}

void Requests::attempt_rename(uint64_t unique, uint64_t first_ino, uint64_t second_ino) {
  if (shared_ == nullptr || unique == 0) return;
  const uint32_t place = own_rename(unique) ? own_rename_place : free_rename_place();
  auto& record = shared_->renamed[place];
  record.unique = kUniqueToCome;
  record.first_ino = first_ino;
  record.second_ino = second_ino;
  record.unique = unique;
  own_rename_place = place;
}

// The place is the caller's by then. All are looked at, because renames that wait for a slow disk have places
// side by side. If all are in hand, as after a program that freed none, it is the one that was taken longest
// ago.
uint32_t Requests::free_rename_place() {
  for (uint32_t tries = 0; tries < kRenames; ++tries) {
    const uint32_t place = shared_->renames++ % kRenames;
    uint64_t none = 0;
    if (shared_->renamed[place].unique.compare_exchange_strong(none, kUniqueToCome)) return place;
  }
  return shared_->renames++ % kRenames;
}

std::optional<Requests::Rename> Requests::rename_at(uint32_t place, uint64_t unique) const {
  const auto& record = shared_->renamed[place];
  if (record.unique != unique) return std::nullopt;
  return Rename{unique, record.first_ino, record.second_ino, place};
}

std::optional<Requests::Rename> Requests::attempted_rename(uint64_t unique) const {
  if (shared_ == nullptr || unique == 0) return std::nullopt;
  for (uint32_t place = 0; place < kRenames; ++place)
    if (const auto found = rename_at(place, unique)) return found;
  return std::nullopt;
}

std::optional<Requests::Rename> Requests::own_rename(uint64_t unique) const {
  if (shared_ == nullptr || unique == 0) return std::nullopt;
  return rename_at(own_rename_place, unique);
}

void Requests::rename_answered(const Rename& rename) {
  uint64_t unique = rename.unique;
  (void)shared_->renamed[rename.place].unique.compare_exchange_strong(unique, 0);
}

// A thread has one record, and settled or old ones make room first: so 256 threads between two tries are
// known, however many others were told meanwhile. Of more it is known that there were more.
void Requests::told_stale(int32_t thread) {
  if (shared_ == nullptr) return;
  MutexLock lock(mutex_);
  const uint64_t now_ms = now_coarse_ms();
  auto its =
      std::ranges::find_if(shared_->stale, [thread](const auto& told) { return told.thread == thread; });
  if (its == std::end(shared_->stale))
    its = std::ranges::find_if(shared_->stale,
                               [now_ms](const auto& told) { return !is_lately(told.at_ms, now_ms); });
  if (its == std::end(shared_->stale)) {
    its = shared_->stale + static_cast<uint32_t>(thread) % kStales;
    stale_lost_now();
  }
  its->thread = thread;
  its->at_ms = now_ms;
}

void Requests::settled_stale(int32_t thread) {
  if (shared_ == nullptr) return;
  MutexLock lock(mutex_);
  for (auto& told : shared_->stale)
    if (told.thread == thread) told.at_ms = 0;
}

void Requests::stale_lost_now() {
  shared_->stale_lost_s = static_cast<uint32_t>(now_coarse_ms() / 1000) + 1;
}

bool Requests::lost_stale_lately() const {
  if (shared_ == nullptr) return false;
  const uint64_t lost_ms = uint64_t{shared_->stale_lost_s} * 1000;
  return lost_ms != 0 && now_coarse_ms() < lost_ms + kLatelyMs;
}

std::vector<int32_t> Requests::told_stale_lately() const {
  std::vector<int32_t> result;
  if (shared_ == nullptr) return result;
  for (const auto& told : shared_->stale)
    if (is_lately(told.at_ms, now_coarse_ms())) result.push_back(told.thread);
  return result;
}

void Requests::connection_ended() {
  if (shared_ == nullptr) return;
  for (auto& request : shared_->in_hand) {
    request.begun_ns = 0;
    request.attempted = 0;
    request.unique = 0;
  }
  for (auto& rename : shared_->renamed) rename.unique = 0;
  for (auto& told : shared_->stale) told.at_ms = 0;
  shared_->stale_lost_s = 0;
}

uint64_t Requests::oldest_ns() const {
  uint64_t oldest_ns = 0;
  if (shared_ == nullptr) return oldest_ns;
  for (const auto& request : shared_->in_hand) {
    const uint64_t begun_ns = request.begun_ns;
    if (begun_ns == 0 || request.generation != shared_->generation) continue;
    if (oldest_ns == 0 || begun_ns < oldest_ns) oldest_ns = begun_ns;
  }
  return oldest_ns;
}

}  // namespace kvcachefs
