// An EntryIndex beside a naive model of it: a map of all entries, and a search of all of them for each query.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/entry_index_test.h"

namespace kvcachefs::test {
namespace {

// Each a change and two queries: they take 10 s, and under a sanitizer as much.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSteps = 5'000;
#else
constexpr int kSteps = 100'000;
#endif

using EntryIndexModelTest = EntryIndexTest;

struct Known {
  std::string parent;
  std::vector<uint32_t> numbers;
  std::string model, agent;
};

}  // namespace

TEST_F(EntryIndexModelTest, AgreesOverManyChanges) {
  std::mt19937_64 generator(5);
  const auto random = [&] { return static_cast<uint32_t>(generator() >> 32); };
  std::map<std::string, Known> known;
  const auto name_of = [](uint64_t number) { return "e" + std::to_string(number); };
  // The blocks from the root on, if all that precede it are there.
  const std::function<std::optional<std::vector<uint32_t>>(const std::string&, int)> path_of =
      [&](const std::string& name, int depth) -> std::optional<std::vector<uint32_t>> {
    const auto found = known.find(name);
    if (found == known.end() || depth > 30 || found->second.numbers.empty()) return std::nullopt;
    std::vector<uint32_t> path;
    if (!found->second.parent.empty()) {
      const auto parent = known.find(found->second.parent);
      if (parent == known.end() || parent->second.model != found->second.model) return std::nullopt;
      auto before = path_of(found->second.parent, depth + 1);
      if (!before) return std::nullopt;
      path = *before;
    }
    path.insert(path.end(), found->second.numbers.begin(), found->second.numbers.end());
    return path;
  };
  const auto longest = [&](const std::vector<uint32_t>& query, const std::string& model) {
    size_t at = 0;
    for (bool further = true; further;) {
      further = false;
      for (const auto& [name, entry] : known) {
        const auto path = entry.model == model ? path_of(name, 0) : std::nullopt;
        if (!path) continue;
        const size_t start = path->size() - entry.numbers.size();
        const auto same = static_cast<size_t>(std::ranges::mismatch(*path, query).in1 - path->begin());
        if (start > at || same <= at) continue;
        at = same;
        further = true;
      }
    }
    return at;
  };
  for (int step = 0; step < kSteps; ++step) {
    const std::string name = name_of(random() % 24), other_name = name_of(random() % 24);
    const auto is_there = known.contains(name);
    const uint32_t kind = random() % 4;
    if (is_there && kind == 0) {
      known[name].agent = "a" + std::to_string(random() % 3);
      set(name, "agent", known[name].agent);
    } else if (is_there && kind == 1) {
      if (name == other_name) continue;
      ASSERT_TRUE(tree_->rename(root(), name.c_str(), root(), other_name.c_str(), 0));
      known[other_name] = std::exchange(known[name], {});
      known.erase(name);
    } else if (is_there && kind == 2) {
      known[name].parent = random() % 2 == 0 ? other_name : "";
      set(name, "parent", known[name].parent);
    } else if (!is_there) {
      Known entry;
      entry.model = random() % 4 == 0 ? "m" : "";
      entry.agent = "a" + std::to_string(random() % 3);
      for (uint32_t i = random() % 3 + 1; i > 0; --i) entry.numbers.push_back(random() % 3);
      if (random() % 2 == 0) entry.parent = name_of(random() % 24);
      store(name);
      if (!entry.model.empty()) set(name, "model", entry.model);
      set(name, "agent", entry.agent);
      if (!entry.parent.empty()) set(name, "parent", entry.parent);
      set(name, "tokens", bytes_of(blocks(entry.numbers)));
      known[name] = entry;
    } else {
      ASSERT_TRUE(tree_->remove(root(), name.c_str(), false));
      known.erase(name);
    }
    if (random() % 4 == 0) (void)index_->step();
    std::vector<uint32_t> query(random() % 8);
    for (uint32_t& number : query) number = random() % 3;
    const std::string model = random() % 3 == 0 ? "m" : "";
    const auto pieces = index_->match(model, blocks(query), asker());
    const size_t matched = pieces.empty() ? 0 : pieces.back().end_token / kTokens;
    ASSERT_EQ(matched, longest(query, model)) << "step " << step;
    const std::string agent = "a" + std::to_string(random() % 3);
    const EntryIndex::Filter filter(Attribute::kAgent, agent);
    std::set<std::string> listed, expected;
    for (const auto& [found, metadata] : EntryIndexTest::listed({&filter, 1}, asker()))
      listed.insert(found.name);
    for (const auto& [its, entry] : known)
      if (entry.agent == agent) expected.insert(its);
    ASSERT_EQ(listed, expected) << "step " << step;
  }
}

}  // namespace kvcachefs::test
