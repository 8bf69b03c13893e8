#include "tier/entries/admission.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/mixed.h"

namespace kvcachefs {
namespace {

constexpr uint64_t kCounterMaximum = 15;
// The store and one more use.
constexpr uint32_t kUsesToAdmit = 2;

}  // namespace

UseSketch::UseSketch(uint64_t window)
    : window_(window),
      generations_{Generation(window * kCountersPerUse * kRows / kCountersPerWord),
                   Generation(window * kCountersPerUse * kRows / kCountersPerWord)} {
  KVCACHEFS_CHECK(std::has_single_bit(window) && window >= kCountersPerWord);
}

std::array<UseSketch::Place, UseSketch::kRows> UseSketch::places_of(uint64_t key_hash) const {
  const uint64_t row_counters = window_ * kCountersPerUse;
  std::array<Place, kRows> places;
  // The two halves of one good hash give a hash for every row.
  uint64_t hash = mixed(key_hash);  // which may be an inode number
  const uint64_t step = std::rotl(hash, 32) | 1;
  for (unsigned row = 0; row < kRows; ++row, hash += step) {
    const uint64_t counter = row * row_counters + (hash & (row_counters - 1));
    places[row] = {.word = counter / kCountersPerWord,
                   .shift = static_cast<unsigned>(counter % kCountersPerWord) * 4};
  }
  return places;
}

void UseSketch::seen(uint64_t key_hash) {
  const uint64_t number = seen_.fetch_add(1, std::memory_order_relaxed);
  Generation& young = generations_[number / window_ % 2];
  if (number % window_ == 0) {
    // Counts that another thread adds to `young` meanwhile may be lost with the old ones.
    for (std::atomic<uint64_t>& word : young) word.store(0, std::memory_order_relaxed);
  }
  for (const Place& place : places_of(key_hash)) {
    std::atomic<uint64_t>& word = young[place.word];
    uint64_t value = word.load(std::memory_order_relaxed);
    while (
        (value >> place.shift & kCounterMaximum) != kCounterMaximum &&
        !word.compare_exchange_weak(value, value + (uint64_t{1} << place.shift), std::memory_order_relaxed)) {
    }
  }
}

uint32_t UseSketch::uses(uint64_t key_hash) const {
  uint64_t least = 2 * kCounterMaximum;
  for (const Place& place : places_of(key_hash)) {
    uint64_t sum = 0;
    for (const Generation& generation : generations_)
      sum += generation[place.word].load(std::memory_order_relaxed) >> place.shift & kCounterMaximum;
    least = std::min(least, sum);
  }
  return static_cast<uint32_t>(least);
}

AdmissionFilter::AdmissionFilter(Admission kind, uint64_t window) : window_(window), kind_(Admission::kAll) {
  set_kind(kind);
}

bool AdmissionFilter::admit(uint64_t key_hash, uint32_t opens_since_stored) const {
  switch (kind()) {
    case Admission::kSecondAccess:
      return opens_since_stored > 0;
    case Admission::kTinyLfu: {
      const UseSketch* sketch = sketch_.load(std::memory_order_acquire);
      return sketch != nullptr && sketch->uses(key_hash) >= kUsesToAdmit;
    }
    case Admission::kAll:
      break;
  }
  return true;
}

void AdmissionFilter::seen(uint64_t key_hash) {
  if (kind() != Admission::kTinyLfu) return;
  UseSketch* sketch = sketch_.load(std::memory_order_acquire);
  if (sketch != nullptr) sketch->seen(key_hash);
}

void AdmissionFilter::set_kind(Admission kind) {
  MutexLock lock(mutex_);
  if (kind == Admission::kTinyLfu && !owned_sketch_) {
    owned_sketch_ = std::make_unique<UseSketch>(window_);
    sketch_.store(owned_sketch_.get(), std::memory_order_release);
  }
  kind_.store(kind, std::memory_order_relaxed);
}

}  // namespace kvcachefs
