// A policy decides which entry of a pool leaves next. It sees opens and not reads, because the kernel moves
// the bytes. Thread safety: none of its own; the caller holds the lock that guards the pool's policy.
// Failure: none; the only allocation is one heap slot per entry.
//
// Each policy gives a candidate a score when it is put in or touched, and the lowest score leaves first. An
// entry is in the heap exactly while it is a candidate: inserted() and adopt() put it in, next_victim() and
// removed() take it out. Each of them is O(log entries).
//
// Each owner's candidates are in a heap of their own, so that those of some owners can leave before the
// others'. All of a policy's scores can be compared.
#pragma once

#include <bitset>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

namespace kvcachefs {

inline constexpr uint32_t kNotInHeap = UINT32_MAX;

inline constexpr size_t kMostOwners = 256;
using Owners = std::bitset<kMostOwners>;

// The part of an entry that policies own. It lies inside the entry and must not move while it is in a heap.
struct PolicyFacts {
  uint64_t ino = 0;
  uint32_t heap_position = kNotInHeap;
  uint32_t frequency = 0;
  int32_t priority = 0;
  uint8_t owner = 0;  // its user's number in the pool; owned() changes it
  // Ticks of the policy's logical clock, unique in a pool.
  uint64_t last_use = 0;
  uint64_t inserted = 0;

  bool in_heap() const { return heap_position != kNotInHeap; }
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

  void owned(PolicyFacts& facts, uint8_t owner);

  // The entry becomes a candidate with the facts it has: it was unpinned, or is a victim put back.
  void adopt(PolicyFacts& facts);

  // Takes all candidates of the policy it replaces, with their facts, and continues that policy's clock.
  void take_over(Policy& replaced);

  // Advances the clock to the other policy's if that is ahead: for two policies between which entries move.
  void follow(const Policy& other);

  // Takes out the entry that should leave first, of those that these have; nullptr when there is none.
  PolicyFacts* next_victim(const Owners& of = Owners().set());

  size_t size() const;

 protected:
  struct Score {
    uint64_t primary = 0;
    uint64_t secondary = 0;

    auto operator<=>(const Score&) const = default;
  };

 private:
  // An indexed 4-ary heap. heap[i].facts->heap_position == i for every i, and no slot scores lower than its
  // parent, (i - 1) / 4. The score lies in the slot, so that sifting reads one array and no entries: four
  // slots of 24 bytes are two cache lines, and a heap of a million candidates is ten levels deep.
  struct Slot {
    Score score;
    PolicyFacts* facts = nullptr;
  };
  using Heap = std::vector<Slot>;

  virtual Score score(const PolicyFacts& facts) const = 0;
  // True if a priority change alone moves a candidate.
  virtual bool scores_priority() const { return false; }
  virtual void victim_taken(const Score&) {}

  void put(PolicyFacts& facts);
  void touched(PolicyFacts& facts) {
    settle(heaps_[facts.owner], facts.heap_position, {score(facts), &facts});
  }
  static void take_at(Heap& heap, size_t position);
  // Puts the slot where it belongs, starting from a free position: up while it scores lower than the parent,
  // else down.
  static void settle(Heap& heap, size_t position, const Slot& slot);
  static void set(Heap& heap, size_t position, const Slot& slot);
  uint64_t tick() { return ++clock_; }

  std::vector<Heap> heaps_;  // by owner
  uint64_t clock_ = 0;
};

struct PolicyInfo {
  std::string_view name;
  std::string_view description;
  std::unique_ptr<Policy> (*make)();
};

// All policies, the default first.
std::span<const PolicyInfo> policies();

// nullptr if no policy has that name.
std::unique_ptr<Policy> make_policy(std::string_view name);

}  // namespace kvcachefs
