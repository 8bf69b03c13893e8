#include "tier/pool/name_limits.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/support/pool_parts.h"

namespace kvcachefs::name_limits_test {

TEST(NameLimit, ClaimsCountUntilTheyGo) {
  uint64_t count = 1;
  NameLimit limit(3, [&count] { return count; });
  auto first = limit.claim(0), second = limit.claim(0);
  EXPECT_TRUE(first && second);
  EXPECT_FALSE(limit.claim(0));
  EXPECT_EQ(limit.free(), 0u);
  second.reset();
  EXPECT_TRUE(limit.claim(0));
  ++count;  // the first has become one of them
  first.reset();
  EXPECT_EQ(limit.free(), 1u);
  EXPECT_TRUE(limit.claim(0));
  EXPECT_FALSE(limit.claim(1)) << "who came before gets it";
}

TEST(NameLimit, NoneIsNoLimit) {
  NameLimit limit(0, [] { return uint64_t{1} << 40; });
  EXPECT_TRUE(limit.claim(1000));
  EXPECT_EQ(limit.free(), UINT64_MAX);
  EXPECT_EQ(limit.lack(1000), 0u);
}

TEST(NameLimit, ALoweredLimitSaysHowManyHaveToLeave) {
  NameLimit limit(100, [] { return uint64_t{80}; });
  EXPECT_EQ(limit.lack(20), 0u);
  EXPECT_EQ(limit.lack(21), 1u);
  EXPECT_EQ(limit.lack(1000), 80u) << "all, but no more";
  limit.set(50);
  EXPECT_FALSE(limit.claim(0));
  EXPECT_EQ(limit.free(), 0u);
  EXPECT_EQ(limit.lack(0), 30u);
  EXPECT_EQ(limit.lack(5), 35u);
}

TEST(NameLimit, ThreadsTogetherKeepIt) {
  constexpr uint64_t kMost = 1000;
  constexpr int kThreads = 4;
  std::atomic<uint64_t> count{0};
  NameLimit limit(kMost, [&count] { return count.load(); });
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      for (uint64_t tries = 0; tries < kMost; ++tries)
        if (const auto claim = limit.claim(0)) ++count;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(count, kMost);
  while (limit.claim(0)) ++count;
  EXPECT_EQ(count, kMost);
}

class NameLimitsTest : public test::PoolPartsTest {
 protected:
  NameLimitsTest() : PoolPartsTest(Upto::kEvictor) {}
  void SetUp() override {
    PoolPartsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ASSERT_EQ(::fchmod(root(), 0770), 0);  // of a directory with the sticky bit some stay
  }
  int make_one(const std::string& name) {
    return test::code_of(tree_->make(root(), name.c_str(), {.mode = S_IFDIR | 0755}));
  }
  uint64_t directories() const { return limits_.directories.count(); }
  // What a request that needs a place hears at last, while the evictor works.
  Waited wait_for(NameLimit& limit) {
    std::atomic<bool> ended{false};
    std::thread evictor([&] {
      while (!ended) {
        wakeup_.wait(std::chrono::milliseconds(10));
        tidy();
      }
    });
    const Patience patience;
    Waited waited = Waited::kRoom;
    while (waited == Waited::kRoom && limit.free() == 0)
      waited = evictor_->wait_to_make(patience, 0, &limit, true);
    ended = true;
    evictor.join();
    return waited;
  }
};

TEST_F(NameLimitsTest, DirectoriesAreCountedByTheirNames) {
  EXPECT_EQ(make_one("a"), 0);
  EXPECT_EQ(make_one("a"), EEXIST);
  EXPECT_EQ(make_one("b"), 0);
  EXPECT_EQ(test::code_of(tree_->make(root(), "pipe", {.mode = S_IFIFO | 0600})), 0);
  EXPECT_EQ(directories(), 2u);
  EXPECT_TRUE(tree_->rename(root(), "a", root(), "b", 0));
  EXPECT_EQ(directories(), 1u) << "b was replaced";
  EXPECT_EQ(make_one("c"), 0);
  EXPECT_TRUE(tree_->rename(root(), "c", root(), "d", 0));
  EXPECT_TRUE(tree_->rename(root(), "d", root(), "b", RENAME_EXCHANGE));
  EXPECT_EQ(directories(), 2u);
  EXPECT_TRUE(tree_->remove(root(), "b", true));
  EXPECT_EQ(test::code_of(tree_->remove(root(), "b", true)), ENOENT);
  tree_->unmake(root(), "d", true);
  tree_->unmake(root(), "d", true);
  EXPECT_EQ(directories(), 0u);
}

TEST_F(NameLimitsTest, EmptyDirectoriesThatNobodyUsesLeaveAheadOfTheLimit) {
  limits_.directories.set(16);
  for (int i = 0; i < 15; ++i) {
    const std::string name = "d" + std::to_string(i);
    EXPECT_EQ(make_one(name), 0);
    tree_->empty_directories()->rests({.handle = handle(name)}, now_coarse_ms() - 120'000);
  }
  tidy();
  EXPECT_EQ(directories(), 12u) << "a quarter is free again";
  EXPECT_FALSE(is_there("d0"));
  EXPECT_TRUE(is_there("d14"));
  EXPECT_EQ(counters_.directories_reclaimed, 3u);
  limits_.directories.set(4);
  tidy();
  EXPECT_EQ(directories(), 3u);
}

TEST_F(NameLimitsTest, NoEntryLeavesForOneThatHasBeenMadeAndStillClaimsItsPlace) {
  limits_.entries.set(2);
  (void)store("e0", "x");
  const auto place = limits_.entries.claim(0);
  ASSERT_TRUE(place);
  (void)store("e1", "x");
  tidy();
  EXPECT_TRUE(is_there("e0"));
  EXPECT_EQ(limits_.entries.count(), 2u);
}

TEST_F(NameLimitsTest, WhoWaitsForADirectoryHearsThatNoneCanGo) {
  limits_.directories.set(1);
  EXPECT_EQ(make_one("d"), 0);
  (void)make("d/f");
  EXPECT_EQ(evictor_->wait_to_make({.may_wait = false}, 0, &limits_.directories, true), Waited::kWouldWait);
  EXPECT_EQ(wait_for(limits_.directories), Waited::kNoRoom);
  EXPECT_TRUE(is_there("d"));
}

TEST_F(NameLimitsTest, EntriesLeaveForWhoWaitsAlone) {
  limits_.entries.set(2);
  const uint64_t f = store("f"), g = store("g");
  tidy();
  EXPECT_TRUE(state(f).exists && state(g).exists) << "nobody waits";
  EXPECT_FALSE(evictor_->claim(limits_.entries, {}));
  EXPECT_EQ(wait_for(limits_.entries), Waited::kRoom);
  EXPECT_FALSE(state(f).exists);
  EXPECT_TRUE(state(g).exists);
  EXPECT_TRUE(evictor_->claim(limits_.entries, {}));
}

TEST_F(NameLimitsTest, AFreshEntryLeavesForWhoWaitsAndOneInUseStays) {
  limits_.entries.set(2);
  const uint64_t used = store("used"), fresh = store_fresh("fresh");
  open_entry(used);
  EXPECT_EQ(wait_for(limits_.entries), Waited::kRoom);
  EXPECT_FALSE(state(fresh).exists);
  limits_.entries.set(1);
  EXPECT_EQ(wait_for(limits_.entries), Waited::kNoRoom);
  EXPECT_TRUE(state(used).exists);
}

TEST_F(NameLimitsTest, ALoweredLimitIsReachedByItself) {
  for (int i = 0; i < 20; ++i) (void)store(std::to_string(i));
  limits_.entries.set(5);
  tidy();
  EXPECT_EQ(entries_.sums().files(), 5u);
  EXPECT_TRUE(is_there("19"));
}

TEST_F(NameLimitsTest, AnEntryOnTheDiskAloneIsDiscardedForItsPlace) {
  attach_disk();
  const uint64_t f = store("f"), g = store("g");
  make_cold(g);
  limits_.entries.set(1);
  tidy();
  EXPECT_FALSE(state(g).exists);
  EXPECT_TRUE(state(f).exists);
}

}  // namespace kvcachefs::name_limits_test
