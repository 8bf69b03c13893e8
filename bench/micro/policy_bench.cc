// The cost of an eviction policy: a use of a candidate, and a victim with a new entry in its place.
#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "tier/policies/policy.h"

namespace kvcachefs {
namespace {

std::vector<PolicyFacts> candidates(Policy& policy, int64_t count) {
  std::vector<PolicyFacts> facts(static_cast<size_t>(count));
  for (PolicyFacts& fact : facts) policy.inserted(fact);
  return facts;
}

uint64_t next_random(uint64_t& state) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return state >> 33;
}

void use(benchmark::State& state, const std::string& name) {
  const auto policy = make_policy(name);
  std::vector<PolicyFacts> facts = candidates(*policy, state.range(0));
  uint64_t random = 1;
  for (auto _ : state) policy->opened(facts[next_random(random) % facts.size()]);
  state.SetItemsProcessed(state.iterations());
}

void replace(benchmark::State& state, const std::string& name) {
  const auto policy = make_policy(name);
  std::vector<PolicyFacts> facts = candidates(*policy, state.range(0));
  for (auto _ : state) policy->inserted(*policy->next_victim());
  state.SetItemsProcessed(state.iterations());
}

const bool registered = [] {
  for (const PolicyInfo& info : policies()) {
    const std::string name(info.name);
    benchmark::RegisterBenchmark(("use/" + name).c_str(), use, name)->Arg(1'000)->Arg(1'000'000);
    benchmark::RegisterBenchmark(("replace/" + name).c_str(), replace, name)->Arg(1'000)->Arg(1'000'000);
  }
  return true;
}();

}  // namespace
}  // namespace kvcachefs
