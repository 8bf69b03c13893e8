#include "tier/policies/heap_policy.h"

namespace kvcachefs {
namespace {

class PriorityPolicy final : public HeapPolicy {
 private:
  Score score(const PolicyFacts& facts) const override {
    const int64_t above_lowest = int64_t{facts.priority} - INT32_MIN;
    return {.primary = static_cast<uint64_t>(above_lowest), .secondary = facts.last_use};
  }
  bool scores_priority() const override { return true; }
};

}  // namespace

std::unique_ptr<Policy> make_priority_policy() {
  return std::make_unique<PriorityPolicy>();
}

}  // namespace kvcachefs
