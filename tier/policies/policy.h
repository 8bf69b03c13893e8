// Eviction policies: which entry of a pool leaves next. A policy sees opens, not reads: the kernel moves the
// bytes.
// Thread safety: none of its own; the caller holds the lock that guards the pool's policy.
// Failure: none; only memory for one heap slot an entry is allocated.
//
// An entry is in the heap exactly while it is a candidate: inserted() and adopt() put it in, next_victim()
// and removed() take it out, released() puts it back when a busy victim has become idle. All of them are
// O(log entries).
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

  // A new entry, or new content of an old one, counts as used once; inserted() makes it a candidate, too.
  void stored(PolicyFacts& facts);
  void inserted(PolicyFacts& facts);

  // A use. The order of a candidate changes; what is not in the heap only has its facts updated.
  void opened(PolicyFacts& facts);

  // The last open ended: used until now, and a candidate again if it was taken out. Not to be called for an
  // entry that must not become a victim, such as a pinned one.
  void released(PolicyFacts& facts);

  // Not a candidate any more: gone, pinned or written again. Does nothing for one that is not in the heap.
  void removed(PolicyFacts& facts);

  // The caller has changed the priority.
  void reprioritised(PolicyFacts& facts);

  // Becomes a candidate with the facts it has: an unpinned entry, or a victim put back.
  void adopt(PolicyFacts& facts);

  // Takes all candidates of the policy it replaces, with the facts they have, and goes on with its clock.
  void take_over(Policy& replaced);

  // Goes on with the other's clock where that is ahead: for two policies between which entries move.
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

// All policies there are, the default first.
std::span<const PolicyInfo> policies();

// nullptr if there is none of that name.
std::unique_ptr<Policy> make_policy(std::string_view name);

}  // namespace kvcachefs
