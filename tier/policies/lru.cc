#include "tier/policies/heap_policy.h"

namespace kvcachefs {
namespace {

class LruPolicy final : public HeapPolicy {
 private:
  Score score(const PolicyFacts& facts) const override { return {.primary = facts.last_use}; }
};

}  // namespace

std::unique_ptr<Policy> make_lru_policy() {
  return std::make_unique<LruPolicy>();
}

}  // namespace kvcachefs
