#include "tier/policies/policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <vector>

namespace kvcachefs::policy_test {

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const PolicyInfo& info : policies()) result.emplace_back(info.name);
  return result;
}

// NaivePolicy applies the same rules naively: it keeps every score in a map and finds the victim by looking
// at all.
class NaivePolicy {
 public:
  using Score = std::tuple<int64_t, uint64_t>;

  explicit NaivePolicy(std::string name) : name_(std::move(name)) {}

  struct Seen {
    uint32_t frequency = 0;
    int32_t priority = 0;
    uint64_t last_use = 0;
    uint64_t inserted = 0;
  };

  void inserted(uint64_t ino) {
    Seen& seen = seen_[ino];
    seen.inserted = seen.last_use = ++clock_;
    seen.frequency = 1;
    put(ino);
  }
  void opened(uint64_t ino) {
    ++seen_[ino].frequency;
    seen_[ino].last_use = ++clock_;
    if (candidates_.contains(ino)) put(ino);
  }
  void removed(uint64_t ino) { candidates_.erase(ino); }
  void reprioritised(uint64_t ino, int32_t priority) {
    seen_[ino].priority = priority;
    if (name_ == "priority" && candidates_.contains(ino)) put(ino);
  }
  void adopt(uint64_t ino) {
    if (!candidates_.contains(ino)) put(ino);
  }
  uint64_t next_victim() {
    const auto victim = std::min_element(candidates_.begin(), candidates_.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
    if (victim == candidates_.end()) return 0;
    const uint64_t ino = victim->first;
    age_ = std::max(age_, std::get<0>(victim->second));
    candidates_.erase(victim);
    return ino;
  }
  void exchange(std::string name) {
    name_ = std::move(name);
    age_ = 0;
    for (auto& [ino, score] : candidates_) score = score_of(seen_[ino]);
  }
  size_t size() const { return candidates_.size(); }
  bool is_candidate(uint64_t ino) const { return candidates_.contains(ino); }

 private:
  Score score_of(const Seen& seen) const {
    if (name_ == "lru") return {0, seen.last_use};
    if (name_ == "fifo") return {0, seen.inserted};
    if (name_ == "priority") return {seen.priority, seen.last_use};
    return {age_ + seen.frequency, seen.last_use};
  }
  void put(uint64_t ino) { candidates_[ino] = score_of(seen_[ino]); }

  std::string name_;
  uint64_t clock_ = 0;
  int64_t age_ = 0;
  std::map<uint64_t, Seen> seen_;
  std::map<uint64_t, Score> candidates_;
};

TEST(Policies, AreKnownByName) {
  EXPECT_EQ(names(), (std::vector<std::string>{"lru", "lfu", "fifo", "priority"}));
  for (const PolicyInfo& info : policies()) {
    EXPECT_NE(make_policy(info.name), nullptr);
    EXPECT_FALSE(info.description.empty());
  }
  EXPECT_EQ(make_policy("mru"), nullptr);
  EXPECT_EQ(make_policy(""), nullptr);
}

class EveryPolicy : public testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<Policy> policy_ = make_policy(GetParam());
};

TEST_P(EveryPolicy, HasNoVictimWhenEmpty) {
  EXPECT_EQ(policy_->size(), 0u);
  EXPECT_EQ(policy_->next_victim(), nullptr);
}

TEST_P(EveryPolicy, VictimsAreTakenOut) {
  PolicyFacts first;
  PolicyFacts second;
  policy_->inserted(first);
  policy_->inserted(second);
  EXPECT_EQ(policy_->next_victim(), &first);
  EXPECT_FALSE(first.in_heap());
  EXPECT_TRUE(second.in_heap());
  EXPECT_EQ(policy_->size(), 1u);
}

TEST_P(EveryPolicy, AnOpenedVictimStaysOutUntilItIsPutBack) {
  PolicyFacts facts;
  policy_->inserted(facts);
  ASSERT_EQ(policy_->next_victim(), &facts);
  policy_->opened(facts);
  EXPECT_EQ(facts.frequency, 2u);
  EXPECT_EQ(policy_->size(), 0u);
  policy_->adopt(facts);
  EXPECT_EQ(policy_->next_victim(), &facts);
}

TEST_P(EveryPolicy, RemovingTwiceIsHarmless) {
  PolicyFacts facts;
  policy_->inserted(facts);
  policy_->removed(facts);
  policy_->removed(facts);
  policy_->reprioritised(facts);
  EXPECT_EQ(policy_->size(), 0u);
}

TEST_P(EveryPolicy, AgreesWithTheNaiveOne) {
  constexpr uint64_t kEntries = 300;
  for (uint32_t seed = 1; seed <= 5; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937 random(seed);
    std::unique_ptr<Policy> policy = make_policy(GetParam());
    NaivePolicy naive(GetParam());
    std::deque<PolicyFacts> facts(kEntries + 1);
    for (uint64_t ino = 1; ino <= kEntries; ++ino) facts[ino].ino = ino;
    for (int step = 0; step < 20'000; ++step) {
      const uint64_t ino = 1 + random() % kEntries;
      PolicyFacts& entry = facts[ino];
      switch (random() % 10) {
        case 0:
        case 1:
          policy->inserted(entry);
          naive.inserted(ino);
          break;
        case 2:
        case 3:
        case 4:
          policy->opened(entry);
          naive.opened(ino);
          break;
        case 5:
        case 6:
          policy->removed(entry);
          naive.removed(ino);
          break;
        case 7:
          entry.priority = static_cast<int32_t>(random() % 5) - 2;
          policy->reprioritised(entry);
          naive.reprioritised(ino, entry.priority);
          break;
        case 8:
          if (entry.inserted == 0) break;
          policy->adopt(entry);
          naive.adopt(ino);
          break;
        default: {
          const PolicyFacts* victim = policy->next_victim();
          ASSERT_EQ(victim != nullptr ? victim->ino : 0, naive.next_victim()) << "step " << step;
        }
      }
      ASSERT_EQ(policy->size(), naive.size());
      ASSERT_EQ(entry.in_heap(), naive.is_candidate(ino));
      if (step == 10'000) {
        std::unique_ptr<Policy> other = make_policy(GetParam());
        other->take_over(*policy);
        ASSERT_EQ(policy->size(), 0u);
        policy = std::move(other);
        naive.exchange(GetParam());
      }
    }
    while (const PolicyFacts* victim = policy->next_victim()) ASSERT_EQ(victim->ino, naive.next_victim());
    ASSERT_EQ(naive.size(), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EveryPolicy, testing::ValuesIn(names()),
                         [](const auto& test) { return test.param; });

TEST(PolicyOrder, LruAnOpenMovesBack) {
  auto policy = make_policy("lru");
  PolicyFacts a, b;
  policy->inserted(a);
  policy->inserted(b);
  policy->opened(a);
  EXPECT_EQ(policy->next_victim(), &b);
}

TEST(PolicyOrder, FifoAnOpenChangesNothing) {
  auto policy = make_policy("fifo");
  PolicyFacts a, b;
  policy->inserted(a);
  policy->inserted(b);
  policy->opened(a);
  EXPECT_EQ(policy->next_victim(), &a);
}

TEST(PolicyOrder, PriorityThenLeastRecentlyUsed) {
  auto policy = make_policy("priority");
  PolicyFacts important, old_one, young_one;
  important.priority = 1000;
  policy->inserted(important);
  policy->inserted(old_one);
  policy->inserted(young_one);
  young_one.priority = -1;
  policy->reprioritised(young_one);
  EXPECT_EQ(policy->next_victim(), &young_one);
  EXPECT_EQ(policy->next_victim(), &old_one);
  EXPECT_EQ(policy->next_victim(), &important);
}

TEST(PolicyOrder, LfuForgetsOldFame) {
  auto policy = make_policy("lfu");
  PolicyFacts famous;
  policy->inserted(famous);
  for (int i = 0; i < 9; ++i) policy->opened(famous);
  std::deque<PolicyFacts> passing(100);
  size_t evicted_before_famous = 0;
  policy->inserted(passing[0]);
  for (size_t index = 1; index < passing.size(); ++index) {
    policy->inserted(passing[index]);
    if (policy->next_victim() == &famous) break;
    ++evicted_before_famous;
  }
  // Each victim's score is one above that of the victim before: ten uses protect an entry for about ten
  // victims.
  EXPECT_GE(evicted_before_famous, 8u);
  EXPECT_LE(evicted_before_famous, 21u);
}

TEST(PolicyOrder, AnExchangedPolicyKeepsWhatIsKnown) {
  auto lru = make_policy("lru");
  PolicyFacts a, b, c;
  lru->inserted(a);
  lru->inserted(b);
  lru->inserted(c);
  lru->opened(a);
  auto fifo = make_policy("fifo");
  fifo->take_over(*lru);
  EXPECT_EQ(lru->size(), 0u);
  EXPECT_EQ(a.frequency, 2u);
  PolicyFacts late;
  fifo->inserted(late);
  EXPECT_GT(late.inserted, a.last_use);
  EXPECT_EQ(fifo->next_victim(), &a);
  EXPECT_EQ(fifo->next_victim(), &b);
  EXPECT_EQ(fifo->next_victim(), &c);
  EXPECT_EQ(fifo->next_victim(), &late);
}

}  // namespace kvcachefs::policy_test
