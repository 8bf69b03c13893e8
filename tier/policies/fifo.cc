#include "tier/policies/heap_policy.h"

namespace kvcachefs {
namespace {

class FifoPolicy final : public HeapPolicy {
 private:
  Score score(const PolicyFacts& facts) const override { return {.primary = facts.inserted}; }
};

}  // namespace

std::unique_ptr<Policy> make_fifo_policy() {
  return std::make_unique<FifoPolicy>();
}

}  // namespace kvcachefs
