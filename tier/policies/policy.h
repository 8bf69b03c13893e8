// A policy decides which entry of a pool leaves next. It sees opens and not reads, because the kernel moves
// the bytes. Thread safety: none of its own; the caller holds the lock that guards the pool's policy.
// Failure: none; the only allocation is one heap slot per entry.
//
// An entry is in the heap exactly while it is a candidate: inserted() and adopt() put it in, next_victim()
// and removed() take it out. Each of them is O(log entries).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace kvcachefs {

inline constexpr uint32_t kNotInHeap = UINT32_MAX;

// The part of an entry that policies own. It lies inside the entry and must not move while it is in a heap.
struct PolicyFacts {
  uint64_t ino = 0;
  uint32_t heap_position = kNotInHeap;
  uint32_t frequency = 0;
  int32_t priority = 0;
  // Ticks of the policy's logical clock, unique in a pool.
  uint64_t last_use = 0;
  uint64_t inserted = 0;

  bool in_heap() const { return heap_position != kNotInHeap; }
};

struct PolicyInfo {
  std::string_view name;
  std::string_view description;
};

class Policy {
 public:
  Policy() = default;
  virtual ~Policy() = default;
  Policy(const Policy&) = delete;
  Policy& operator=(const Policy&) = delete;

  // A new entry, or an old one with new content, counts as used once; inserted() also makes it a candidate.
  void stored(PolicyFacts& facts);
  void inserted(PolicyFacts& facts);

  // An open is a use: it changes the order of a candidate. An entry outside the heap has only its facts
  // updated.
  void opened(PolicyFacts& facts);

  // The entry is no candidate any more: it is gone, pinned or written again. Nothing happens if it is not in
  // the heap.
  void removed(PolicyFacts& facts);

  // The caller has changed the priority.
  void reprioritised(PolicyFacts& facts);

  // The entry becomes a candidate with the facts it has: it was unpinned, or is a victim put back.
  void adopt(PolicyFacts& facts);

  // Takes all candidates of the policy it replaces, with their facts, and continues that policy's clock.
  void take_over(Policy& replaced);

  // Advances the clock to the other policy's if that is ahead: for two policies between which entries move.
  void follow(const Policy& other);

  // Takes out the entry that should leave first; nullptr when there is no candidate.
  PolicyFacts* next_victim();

  virtual size_t size() const = 0;

 private:
  virtual void put(PolicyFacts& facts) = 0;
  virtual void touched(PolicyFacts& facts) = 0;
  virtual void priority_changed(PolicyFacts& facts) = 0;
  virtual void take(PolicyFacts& facts) = 0;
  virtual PolicyFacts* take_first() = 0;

  uint64_t tick() { return ++clock_; }

  uint64_t clock_ = 0;
};

// All policies, the default first.
std::span<const PolicyInfo> policies();

// nullptr if no policy has that name.
std::unique_ptr<Policy> make_policy(std::string_view name);

}  // namespace kvcachefs
