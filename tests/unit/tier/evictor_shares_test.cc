// Whose entries leave for whom, where users have shares (tier/entries/shares.h).
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <optional>
#include <string>

#include "tests/support/files.h"
#include "tests/support/pool_parts.h"
#include "tier/pool/counted_inode.h"

namespace kvcachefs::evictor_shares_test {

using Answer = Room::Answer;
using Whose = Room::Whose;

constexpr uid_t kGreedy = 4001, kModest = 4002;
constexpr uint64_t kQuarterOfAShare = (1 << 20) - 8192;  // with what its inode takes

class EvictorSharesTest : public test::PoolPartsTest {
 protected:
  EvictorSharesTest() : PoolPartsTest(Upto::kEvictor) {
    options_.watermarks = {.low_percent = 100, .high_percent = 100};
    options_.user_share_percent = 25;
  }
  void give(const std::string& name, uid_t uid) {
    ASSERT_EQ(::fchownat(root(), name.c_str(), uid, 0, AT_SYMLINK_NOFOLLOW), 0);
    MutexLock lock(shard(ino(name)).mutex);
    count_inode(entries_, &entry(ino(name)), open(name, O_PATH).get());
  }
  uint64_t store_as(uid_t uid, const std::string& name, uint64_t bytes = kBlock) {
    const uint64_t stored = store(name, std::string(bytes, 'x'));
    give(name, uid);
    return stored;
  }
  // Of a user who has more than his share by it, and keeps it open.
  uint64_t fill_by_an_open_file(const std::string& name) {
    const uint64_t made = create(name);
    give(name, kGreedy);
    capacity_->writers().open(made, 0, true);
    capacity_->writers().owned(made, entry(made).policy.owner);
    const UniqueFd file = open(name);
    EXPECT_TRUE(sys::allocate(file.get(), 0, 0, arena_->usage().free_bytes));
    (void)reservations_->follow_writers();
    EXPECT_TRUE(entries_.shares().is_user_over(kGreedy));
    return made;
  }
  int left(const std::string& prefix, int count) const {
    int found = 0;
    for (int i = 0; i < count; ++i) found += is_there(prefix + std::to_string(i));
    return found;
  }
  void store_modest(int count) {
    for (int i = 0; i < count; ++i) (void)store_as(kModest, "m" + std::to_string(i));
  }
  EvictResult evict(uint64_t entries) {
    return evictor_->evict_now({.unit = EvictOrder::Unit::kEntries, .amount = entries, .patient = false});
  }
};

TEST_F(EvictorSharesTest, TheirsLeaveFirstWhateverThePolicySays) {
  for (const char* policy : {"lru", "lfu", "fifo", "priority"}) {
    entries_.candidates().set_policy(policy);
    store_modest(4);
    entries_.described(entry(ino("m0")), -10);
    for (int i = 0; i < 5; ++i) (void)store_as(kGreedy, "g" + std::to_string(i), kQuarterOfAShare);
    ASSERT_TRUE(entries_.shares().is_user_over(kGreedy));
    EXPECT_EQ(evict(1).entries, 1u);
    EXPECT_FALSE(is_there("g0")) << policy << ": the policy orders theirs";
    EXPECT_EQ(left("m", 4), 4) << policy;
    ASSERT_FALSE(entries_.shares().is_user_over(kGreedy)) << "he has four";
    EXPECT_EQ(evict(1).entries, 1u);
    EXPECT_EQ(left("m", 4), 3) << policy << ": nobody is over";
    (void)evict(100);
  }
}

TEST_F(EvictorSharesTest, EvenTheirFreshOnesLeaveBeforeOthers) {
  store_modest(4);
  for (int i = 0; i < 5; ++i) {
    const std::string name = "g" + std::to_string(i);
    (void)store_fresh(name, std::string(kMiB, 'x'));
    give(name, kGreedy);  // as a mknod does
  }
  (void)fill_up();
  EXPECT_EQ(tidy_for(Whose::kWriter), Answer::kTryAgain);
  EXPECT_EQ(left("g", 5), 4);
  EXPECT_EQ(left("m", 4), 4);
}

// Whose file is open is not evictable: what he has beyond his share must not count as pressure on others.
TEST_F(EvictorSharesTest, ForOneWhoIsOverNobodyElsesLeave) {
  store_modest(100);
  (void)fill_by_an_open_file("g");
  capacity_->limit().set_watermarks({.low_percent = 50, .high_percent = 60});
  EXPECT_EQ(tidy_for(Whose::kOver), Answer::kNothingToEvict);
  EXPECT_EQ(left("m", 100), 100);
  EXPECT_EQ(tidy_for(Whose::kWriter), Answer::kTryAgain);
  EXPECT_GE(left("m", 100), 80) << "16 entries for one look at the pressure, at most";
  EXPECT_LT(left("m", 100), 100);
}

// A file that was promised much and takes little: by nothing but that its size grows.
TEST_F(EvictorSharesTest, APromiseBeyondAShareIsNoReasonToEvict) {
  store_modest(100);
  const uint64_t sparse = create("sparse");
  give("sparse", kGreedy);
  ASSERT_TRUE(capacity_->admit_writer(sparse, 0, entry(sparse).policy.owner));
  for (uint64_t size = 1; size <= 5; ++size) {
    ASSERT_TRUE(sys::truncate(open("sparse").get(), size));
    (void)reservations_->follow_writers();
    capacity_->writers().raise(sparse, 4 * kPoolBytes);
    const Room::Demand demand(capacity_->room(), Whose::kWriter, kBlock);
    (void)tidy();
  }
  EXPECT_EQ(left("m", 100), 100);
}

// A victim in use is tried again within a tenth of a second: no others leave meanwhile.
TEST_F(EvictorSharesTest, TheirsThatComeFreeSoonAreWaitedFor) {
  store_modest(4);
  (void)store_as(kGreedy, "g", 5 * kMiB);
  std::optional<test::Mapping> mapping;
  mapping.emplace(open("g", O_RDONLY).get(), kBlock, PROT_READ, MAP_SHARED);
  (void)fill_up();
  EXPECT_EQ(tidy_for(Whose::kWriter), std::nullopt);
  EXPECT_TRUE(more_to_tidy());
  EXPECT_EQ(left("m", 4), 4);
  EXPECT_TRUE(test::eventually([&] {
    (void)tidy_for(Whose::kWriter);
    return left("m", 4) < 4;
  })) << "it waits for ever";
  mapping.reset();
  EXPECT_TRUE(test::eventually([&] {
    (void)fill_up();
    (void)tidy_for(Whose::kWriter);
    return !is_there("g");
  }));
}

// A mapping of a closed file fills its holes without any sign.
TEST_F(EvictorSharesTest, WhatAMappingFillsIsSeen) {
  const uint64_t sparse = store_as(kGreedy, "g");
  ASSERT_TRUE(sys::truncate(open("g").get(), 6 * kMiB));
  const test::Mapping mapping(open("g").get(), 6 * kMiB, PROT_READ | PROT_WRITE, MAP_SHARED);
  std::fill_n(mapping.data(), mapping.bytes(), 'y');
  EXPECT_FALSE(entries_.shares().is_user_over(kGreedy));
  EXPECT_EQ(evict(1).entries, 0u);
  EXPECT_GE(state(sparse).charged_bytes, 6 * kMiB) << "with huge pages more";
  EXPECT_TRUE(entries_.shares().is_user_over(kGreedy));
}

TEST_F(EvictorSharesTest, InodesOfOneWhoIsOverPressNobodyElse) {
  store_modest(50);
  const uint64_t reserve = arena_->usage().inodes / kInodeReserve;
  for (uint64_t i = 0; arena_->usage().free_inodes > 1; ++i) {
    const std::string name = "d" + std::to_string(i);
    ASSERT_EQ(::mkdirat(root(), name.c_str(), 0700), 0);
    ASSERT_EQ(::fchownat(root(), name.c_str(), kGreedy, 0, 0), 0);
    MutexLock lock(shard(ino(name)).mutex);
    count_inode(entries_, nullptr, open(name, O_PATH).get());
  }
  EXPECT_TRUE(entries_.shares().is_user_over(kGreedy));
  (void)tidy();
  EXPECT_EQ(left("m", 50), 50);
  EXPECT_TRUE(evictor_->gives_way(kGreedy));
  EXPECT_FALSE(evictor_->gives_way(kModest));
  EXPECT_EQ(evictor_->wait_to_make({.may_wait = false}, kGreedy), Waited::kWouldWait);
  (void)store_as(kModest, "last");
  ASSERT_EQ(arena_->usage().free_inodes, 0u);
  (void)tidy();
  EXPECT_EQ(left("m", 50), 50) << "a reserve of " << reserve << " is not filled for him";
}

TEST_F(EvictorSharesTest, OfThePlacesOfEntriesTheyHaveAShareToo) {
  constexpr uint64_t kMost = 16;
  limits_.entries.set(kMost);
  entries_.shares().set_most_entries(kMost);
  store_modest(4);
  EXPECT_FALSE(entries_.shares().is_user_over(kModest)) << "all of his share";
  for (int i = 0; i < 12; ++i) (void)store_as(kGreedy, "g" + std::to_string(i));
  EXPECT_TRUE(entries_.shares().is_user_over(kGreedy));
  {
    const Room::Demand demand(limits_.entries.room(), Whose::kWriter, 1);
    (void)tidy();
  }
  EXPECT_EQ(left("m", 4), 4);
  EXPECT_LT(left("g", 12), 12);
}

TEST_F(EvictorSharesTest, APlaceForOneWhoIsOverIsNobodyElses) {
  constexpr uint64_t kMost = 16;
  limits_.entries.set(kMost);
  entries_.shares().set_most_entries(kMost);
  store_modest(4);
  for (int i = 0; i < 12; ++i) open_entry(store_as(kGreedy, "g" + std::to_string(i)));
  Room& room = limits_.entries.room();
  const Room::Ticket before = room.ticket();
  const Room::Demand demand(room, Whose::kOver, 1);
  (void)tidy();
  EXPECT_EQ(Room::answer(Whose::kOver, before, room.ticket()), Answer::kNothingToEvict);
  EXPECT_EQ(left("m", 4), 4);
}

// The claim of a request that is about to hear that there is no place counts for a moment, as if one more
// were there.
TEST_F(EvictorSharesTest, AClaimIsNoReasonForOthersToLeave) {
  limits_.entries.set(16);
  entries_.shares().set_most_entries(16);
  store_modest(4);
  const auto make = [this](int i) {
    const std::string name = "g" + std::to_string(i);
    (void)store_fresh(name);
    give(name, kGreedy);
  };
  for (int i = 0; i < 11; ++i) make(i);
  const auto claim = limits_.entries.claim(0);
  make(11);
  ASSERT_EQ(limits_.entries.lack(0), 1u);
  (void)tidy();
  EXPECT_EQ(left("m", 4), 4);
}

// Cold entries leave the disk, and in memory are clean ones that could become cold.
TEST_F(EvictorSharesTest, WhatTheyHaveInMemoryLeavesTheDiskBeforeOthersColdEntries) {
  attach_disk(Durability::kNone, 6);
  make_cold(store_as(kModest, "m0"));
  for (int i = 0; i < 2; ++i) make_clean(store_as(kGreedy, "g" + std::to_string(i)));
  commit();
  ASSERT_TRUE(entries_.shares().is_user_over(kGreedy)) << "of the disk, of which a share is one unit";
  disk_->want_room((tier().store->space().free_units() + 1) * kUnitBytes);
  (void)tidy();
  EXPECT_EQ(left("m", 1), 1);
  EXPECT_EQ(left("g", 2), 1);
}

}  // namespace kvcachefs::evictor_shares_test
