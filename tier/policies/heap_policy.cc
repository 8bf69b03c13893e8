#include "tier/policies/heap_policy.h"

#include <algorithm>

namespace kvcachefs {
namespace {

constexpr size_t kChildren = 4;

}  // namespace

void HeapPolicy::put(PolicyFacts& facts) {
  slots_.emplace_back();
  settle(slots_.size() - 1, Slot{score(facts), &facts});
}

void HeapPolicy::touched(PolicyFacts& facts) {
  settle(facts.heap_position, Slot{score(facts), &facts});
}

void HeapPolicy::priority_changed(PolicyFacts& facts) {
  if (scores_priority()) touched(facts);
}

void HeapPolicy::take(PolicyFacts& facts) {
  take_at(facts.heap_position);
}

PolicyFacts* HeapPolicy::take_first() {
  if (slots_.empty()) return nullptr;
  const Slot first = slots_.front();
  take_at(0);
  victim_taken(first.score);
  return first.facts;
}

void HeapPolicy::set(size_t position, const Slot& slot) {
  slots_[position] = slot;
  slot.facts->heap_position = static_cast<uint32_t>(position);
}

// Puts the slot where it belongs, starting from a free position: up while it scores lower than the parent,
// else down.
void HeapPolicy::settle(size_t position, const Slot& slot) {
  while (position > 0) {
    const size_t parent = (position - 1) / kChildren;
    if (slot.score >= slots_[parent].score) break;
    set(position, slots_[parent]);
    position = parent;
  }
  for (;;) {
    const size_t first_child = position * kChildren + 1;
    if (first_child >= slots_.size()) break;
    const size_t end = std::min(first_child + kChildren, slots_.size());
    size_t lowest = first_child;
    for (size_t child = first_child + 1; child < end; ++child) {
      if (slots_[child].score < slots_[lowest].score) lowest = child;
    }
    if (slot.score <= slots_[lowest].score) break;
    set(position, slots_[lowest]);
    position = lowest;
  }
  set(position, slot);
}

void HeapPolicy::take_at(size_t position) {
  slots_[position].facts->heap_position = kNotInHeap;
  const Slot last = slots_.back();
  slots_.pop_back();
  if (position < slots_.size()) settle(position, last);
}

}  // namespace kvcachefs
