// HeapPolicy is the base of policies that give every candidate a score when it is put in or touched, and
// evict the lowest score. It is an indexed 4-ary heap. Thread safety and failure: as tier/policies/policy.h.
//
// Invariants:
//   1. slots_[i].facts->heap_position == i for every i.
//   2. No slot scores lower than its parent, (i - 1) / 4. The score lies in the slot, so that sifting reads
//      one array and no entries: four slots of 24 bytes are two cache lines, and a heap of a million
//      candidates is ten levels deep.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tier/policies/policy.h"

namespace kvcachefs {

class HeapPolicy : public Policy {
 public:
  struct Score {
    uint64_t primary = 0;
    uint64_t secondary = 0;

    auto operator<=>(const Score&) const = default;
  };

  size_t size() const final { return slots_.size(); }

 private:
  struct Slot {
    Score score;
    PolicyFacts* facts = nullptr;
  };

  // The candidate with the lowest score leaves first. The score is asked whenever a candidate is put in or
  // touched.
  virtual Score score(const PolicyFacts& facts) const = 0;
  // True if a priority change alone moves a candidate.
  virtual bool scores_priority() const { return false; }
  virtual void victim_taken(const Score&) {}

  void put(PolicyFacts& facts) final;
  void touched(PolicyFacts& facts) final;
  void priority_changed(PolicyFacts& facts) final;
  void take(PolicyFacts& facts) final;
  PolicyFacts* take_first() final;

  void settle(size_t position, const Slot& slot);
  void set(size_t position, const Slot& slot);
  void take_at(size_t position);

  std::vector<Slot> slots_;
};

std::unique_ptr<Policy> make_lru_policy();
std::unique_ptr<Policy> make_lfu_policy();
std::unique_ptr<Policy> make_fifo_policy();
std::unique_ptr<Policy> make_priority_policy();

}  // namespace kvcachefs
