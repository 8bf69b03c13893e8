#include "tier/survivors/requests.h"

#include <algorithm>

#include "base/clock.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kLatelyMs = 30'000;  // as in fs/stale_callers.h

constexpr uint32_t kNoRequest = UINT32_MAX;
thread_local uint32_t own_request = kNoRequest;

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
  auto& record = shared_->renamed[shared_->renames++ % kRenames];
  record.unique = 0;
  record.first_ino = first_ino;
  record.second_ino = second_ino;
  record.unique = unique;
}

std::optional<Requests::Rename> Requests::attempted_rename(uint64_t unique) const {
  if (shared_ == nullptr) return std::nullopt;
  for (const auto& record : shared_->renamed)
    if (record.unique == unique) return Rename{unique, record.first_ino, record.second_ino};
  return std::nullopt;
}

void Requests::told_stale(int32_t thread) {
  if (shared_ == nullptr) return;
  auto& told = shared_->stale[shared_->stales++ % kStales];
  told.thread = thread;
  told.at_ms = now_coarse_ms();
}

void Requests::settled_stale(int32_t thread) {
  if (shared_ == nullptr) return;
  for (auto& told : shared_->stale)
    if (told.thread == thread) told.at_ms = 0;
}

std::vector<int32_t> Requests::told_stale_lately() const {
  std::vector<int32_t> result;
  if (shared_ == nullptr) return result;
  for (const auto& told : shared_->stale)
    if (told.at_ms != 0 && now_coarse_ms() - told.at_ms < kLatelyMs) result.push_back(told.thread);
  return result;
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
