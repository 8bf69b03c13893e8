#include "tier/policies/policy.h"

#include <algorithm>
#include <array>

#include "tier/policies/heap_policy.h"

namespace kvcachefs {
namespace {

using Factory = std::unique_ptr<Policy> (*)();

constexpr std::array kPolicies = {
    PolicyInfo{"lru", "least recently opened first"},
    PolicyInfo{"lfu", "least often opened first; old use counts for less and less"},
    PolicyInfo{"fifo", "oldest first, however often opened"},
    PolicyInfo{"priority", "lowest user.kv.priority first, among equals the least recently opened"},
};

constexpr std::array<Factory, kPolicies.size()> kFactories = {
    make_lru_policy,
    make_lfu_policy,
    make_fifo_policy,
    make_priority_policy,
};

}  // namespace

void Policy::stored(PolicyFacts& facts) {
  facts.inserted = facts.last_use = tick();
  facts.frequency = 1;
}

void Policy::inserted(PolicyFacts& facts) {
  stored(facts);
  facts.in_heap() ? touched(facts) : put(facts);
}

void Policy::opened(PolicyFacts& facts) {
  facts.last_use = tick();
  if (facts.frequency != UINT32_MAX) ++facts.frequency;
  if (facts.in_heap()) touched(facts);
}

void Policy::removed(PolicyFacts& facts) {
  if (facts.in_heap()) take(facts);
}

void Policy::reprioritised(PolicyFacts& facts) {
  if (facts.in_heap()) priority_changed(facts);
}

void Policy::adopt(PolicyFacts& facts) {
  clock_ = std::max({clock_, facts.last_use, facts.inserted});
  if (!facts.in_heap()) put(facts);
}

void Policy::take_over(Policy& replaced) {
  clock_ = std::max(clock_, replaced.clock_);
  while (PolicyFacts* facts = replaced.take_first()) put(*facts);
}

void Policy::follow(const Policy& other) {
  clock_ = std::max(clock_, other.clock_);
}

PolicyFacts* Policy::next_victim() {
  return take_first();
}

std::span<const PolicyInfo> policies() {
  return kPolicies;
}

std::unique_ptr<Policy> make_policy(std::string_view name) {
  for (size_t index = 0; index < kPolicies.size(); ++index) {
    if (kPolicies[index].name == name) return kFactories[index]();
  }
  return nullptr;
}

}  // namespace kvcachefs
