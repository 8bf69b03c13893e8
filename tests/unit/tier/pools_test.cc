#include "tier/pool/pools.h"

#include <fcntl.h>

#include <cerrno>
#include <chrono>

#include "tests/support/pools_test.h"

namespace kvcachefs::pools_test {

constexpr auto kLong = std::chrono::minutes(10);

template <class T>
int code_of(const Result<T>& result) {
  return result ? 0 : result.error().code;
}

class PoolsTest : public test::PoolsTest {
 protected:
  static constexpr uint64_t kBlock = 4096;
  int code_of_create(const PoolOptions& wanted) { return code_of(pools_->create(wanted)); }
  std::vector<std::string> names() const {
    std::vector<std::string> result;
    for (const auto& pool : pools_->list()) result.push_back(pool->name());
    return result;
  }
};

using Names = std::vector<std::string>;

TEST_F(PoolsTest, AreFoundByNumberAndByName) {
  const auto b = make(options("b"));
  const auto a = make(options("a"));
  EXPECT_EQ(names(), (Names{"a", "b"}));
  EXPECT_EQ(pools_->find("a"), a);
  EXPECT_EQ(pools_->find(b->number()), b);
  EXPECT_EQ(pools_->find("c"), nullptr);
  EXPECT_EQ(pools_->find(0), nullptr) << "the mount's root";
  EXPECT_EQ(pools_->find(static_cast<uint16_t>(b->number() + 2)), nullptr);
  EXPECT_EQ(pools_->find(0xffff), nullptr);
  EXPECT_EQ(pools_->all().size(), 2u);
}

TEST_F(PoolsTest, WhatCannotBeIsRefused) {
  make(options("p"));
  EXPECT_EQ(code_of_create(options("p")), EEXIST);
  EXPECT_EQ(code_of_create(options("")), EINVAL);
  EXPECT_EQ(code_of_create(options("a/b")), EINVAL);
  PoolOptions small_max = options("max");
  small_max.size_max_bytes = small_max.size_bytes - kBlock;
  EXPECT_EQ(code_of_create(small_max), EINVAL);
  PoolOptions half = options("half");
  half.spill_size_bytes = kMiB;  // of no disk
  EXPECT_EQ(code_of_create(half), EINVAL);
  EXPECT_EQ(names(), Names{"p"});
  EXPECT_EQ(mounted(), Names{"p.1"});
}

TEST_F(PoolsTest, AllTogetherFitInTheMemory) {
  make(options("a", kMemoryBytes - 2 * kMiB));
  EXPECT_EQ(code_of_create(options("b", 2 * kMiB + kBlock)), ENOSPC);
  EXPECT_EQ(code_of_create(options("b", UINT64_MAX / kBlock * kBlock)), ENOSPC);
  EXPECT_EQ(code_of_create(options("b", 2 * kMiB)), 0);
  EXPECT_EQ(code_of_create(options("c", kMiB)), ENOSPC);
}

TEST_F(PoolsTest, APoolOfNoSizeGetsAQuarterOfWhatIsLeft) {
  make(options("a", kMemoryBytes - 64 * kMiB + kBlock));
  auto made = pools_->create_default("b", 0700, 5, 6);
  EXPECT_EQ(code_of(made), 0) << "the least is 16 MiB";
  EXPECT_EQ((*made)->settings().options().size_bytes, Pools::kLeastDefaultBytes);
  EXPECT_EQ((*made)->settings().options().mode, 0700u);
  EXPECT_EQ((*made)->settings().options().uid, 5u);
  EXPECT_EQ((*made)->settings().options().gid, 6u);
  make(options("c", 32 * kMiB));
  EXPECT_EQ(code_of(pools_->create_default("d", 0700, 0, 0)), ENOSPC) << "less than that is left";
}

TEST_F(PoolsTest, ANumberIsNotUsedAgainAtOnce) {
  EXPECT_EQ(make(options("a"))->number(), 1);
  EXPECT_EQ(code_of(pools_->remove("a")), 0);
  pools_->reap();
  EXPECT_EQ(pools_->find(1), nullptr);
  EXPECT_EQ(make(options("a"))->number(), 2);
}

TEST_F(PoolsTest, ARemovedPoolStaysUntilNobodyUsesIt) {
  auto used = make(options("a", kMemoryBytes));
  EXPECT_EQ(code_of(pools_->remove("b")), ENOENT);
  EXPECT_EQ(code_of(pools_->remove("a")), 0);
  evictor_.wait(kLong);  // it was woken: it reaps
  EXPECT_EQ(code_of(pools_->remove("a")), ENOENT);
  EXPECT_TRUE(names().empty());
  EXPECT_EQ(pools_->find("a"), nullptr);
  EXPECT_EQ(pools_->find(1), used) << "the kernel may know inodes of it";
  pools_->reap();
  EXPECT_EQ(pools_->all().size(), 1u);
  EXPECT_EQ(options_written_, 0);
  make(options("a", kMemoryBytes));  // beside it, with the memory that it had
  EXPECT_EQ(mounted(), (Names{"a.1", "a.2"}));
  used.reset();
  pools_->reap();
  EXPECT_EQ(pools_->find(1), nullptr);
  EXPECT_EQ(pools_->all().size(), 1u);
  EXPECT_EQ(options_written_, 1) << "written down before its tmpfs goes";
  EXPECT_EQ(mounted(), Names{"a.2"});
}

TEST_F(PoolsTest, WhatIsStillOpenOfARemovedPoolTakesMemory) {
  const auto pool = make(options("a", kMemoryBytes));
  const UniqueFd file(
      ::openat(pool->inodes().directory(pool->root_ino())->fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  ASSERT_TRUE(sys::allocate(file.get(), 0, 0, 2 * kMiB));
  EXPECT_EQ(code_of(pools_->remove("a")), 0);
  EXPECT_EQ(code_of_create(options("b", kMemoryBytes)), ENOSPC);
  EXPECT_EQ(code_of_create(options("b", kMemoryBytes - 2 * kMiB)), 0);
}

TEST_F(PoolsTest, APoolWithContentIsNotRemoved) {
  const auto pool = make(options("a"));
  const int root = pool->inodes().directory(pool->root_ino())->fd;
  ASSERT_EQ(::mkdirat(root, "directory", 0700), 0);
  EXPECT_EQ(code_of(pools_->remove("a")), ENOTEMPTY);
  EXPECT_EQ(names(), Names{"a"});
  ASSERT_EQ(::unlinkat(root, "directory", AT_REMOVEDIR), 0);
  EXPECT_EQ(code_of(pools_->remove("a")), 0);
}

TEST_F(PoolsTest, AnOwnerGrowsAPoolToItsLimitOnly) {
  const auto pool = make(options("a"));
  EXPECT_EQ(code_of(pools_->resize(*pool, 4 * kMiB + kBlock, Authority::kOwner)), EPERM);
  EXPECT_EQ(code_of(pools_->resize(*pool, 2 * kMiB, Authority::kOwner)), 0);
  EXPECT_EQ(code_of(pools_->resize(*pool, 4 * kMiB, Authority::kOwner)), 0) << "up to what it had";
  EXPECT_EQ(code_of(pools_->resize(*pool, 8 * kMiB, Authority::kAdministrator)), 0);
  EXPECT_EQ(pool->settings().options().size_max_bytes, 8 * kMiB)
      << "an administrator's size is the new limit";
  EXPECT_EQ(code_of(pools_->set_size_max(*pool, 16 * kMiB)), 0);
  EXPECT_EQ(code_of(pools_->resize(*pool, 16 * kMiB, Authority::kOwner)), 0);
  EXPECT_EQ(pool->settings().options().size_bytes, 16 * kMiB);
}

TEST_F(PoolsTest, SizesThatCannotBeAreRefusedToAll) {
  make(options("other", 32 * kMiB));
  const auto pool = make(options("a"));
  for (const uint64_t size_bytes : {uint64_t{0}, kMinimumPoolBytes - kBlock, 2 * kMiB + 1, 32 * kMiB + kBlock,
                                    UINT64_MAX / kBlock * kBlock}) {
    EXPECT_EQ(code_of(pools_->resize(*pool, size_bytes, Authority::kAdministrator)), EINVAL) << size_bytes;
    EXPECT_EQ(pool->settings().options().size_bytes, 4 * kMiB);
  }
  EXPECT_EQ(code_of(pools_->resize(*pool, kMinimumPoolBytes, Authority::kAdministrator)), 0);
  EXPECT_EQ(code_of(pools_->resize(*pool, 32 * kMiB, Authority::kAdministrator)), 0) << "all that is left";
  EXPECT_EQ(code_of(pools_->set_size_max(*pool, kMemoryBytes + kBlock)), EINVAL);
  EXPECT_EQ(code_of(pools_->set_size_max(*pool, 32 * kMiB - kBlock)), EINVAL) << "less than its size";
  EXPECT_EQ(code_of(pools_->set_size_max(*pool, kMemoryBytes)), 0) << "though others have half of it";
}

TEST_F(PoolsTest, APoolThatDoesNotGetItsDiskIsNotMade) {
  PoolOptions nowhere = spilling("a");
  nowhere.spill_path = disk_ / "missing/spill";
  EXPECT_EQ(code_of_create(nowhere), ENOENT);
  EXPECT_TRUE(names().empty());
  EXPECT_TRUE(pools_->all().empty());
  EXPECT_TRUE(mounted().empty());
}

TEST_F(PoolsTest, OverIoUringNoPoolHasADisk) {
  Pools::Surroundings its = surroundings();
  its.opens_may_wait = false;
  Pools pools(std::move(its));
  EXPECT_EQ(code_of(pools.create(spilling("a"))), EOPNOTSUPP);
  auto plain = pools.create(options("a"));
  ASSERT_TRUE(plain);
  EXPECT_EQ(code_of(pools.set_spill(*plain, spilling("a"))), EOPNOTSUPP);
  EXPECT_FALSE(test::exists(disk_ / "spill"));
}

TEST_F(PoolsTest, ADiskComesOnceAndIsToldOf) {
  std::vector<std::string> started;
  pools_->on_disk_tier([&](const auto& pool) { started.push_back(pool->name()); });
  const auto pool = make(options("a"));
  PoolOptions none = options("a");
  EXPECT_EQ(code_of(pools_->set_spill(pool, none)), 0) << "nothing is asked for";
  none.spill_size_bytes = kMiB;
  EXPECT_EQ(code_of(pools_->set_spill(pool, none)), EINVAL);
  EXPECT_TRUE(started.empty());
  ASSERT_EQ(code_of(pools_->set_spill(pool, spilling("a"))), 0);
  EXPECT_NE(pool->disk().tier(), nullptr);
  EXPECT_EQ(started, Names{"a"});
  EXPECT_EQ(code_of(pools_->set_spill(pool, spilling("a"))), EBUSY);
  const auto other = make(options("b"));
  EXPECT_EQ(code_of(pools_->set_spill(other, spilling("b"))), EINVAL) << "the disk is the other pool's";
  EXPECT_EQ(other->disk().tier(), nullptr);
  started.clear();
  pools_->on_disk_tier([&](const auto& its) { started.push_back(its->name()); });
  EXPECT_EQ(started, Names{"a"}) << "and of those that have one already";
}

TEST_F(PoolsTest, AnAdoptedPoolKeepsItsNumber) {
  const auto before = make(options("a"));
  Pools next(surroundings());
  EXPECT_EQ(code_of(next.begin_adopting(2, options("a"))), ENOENT) << "its tmpfs has the number in its name";
  EXPECT_TRUE(next.list().empty());
  ASSERT_EQ(code_of(next.begin_adopting(before->number(), options("a"))), 0);
  ASSERT_EQ(code_of(next.adopt(before->number(), options("a"))), 0);
  ASSERT_NE(next.find("a"), nullptr);
  EXPECT_EQ(next.find("a")->number(), before->number());
  EXPECT_EQ(next.find("a")->root_ino(), before->root_ino());
  EXPECT_EQ(next.create(options("b")).value()->number(), before->number() + 1);
}

TEST_F(PoolsTest, AfterTheLastNumberComesTheFirst) {
  std::filesystem::create_directory(pools_directory_ + "/last");
  {
    const auto arena = MemoryArena::create(
        {.path = pools_directory_ + "/last.32767", .size_bytes = 4 * kMiB, .mode = 0700, .uid = 0, .gid = 0});
    ASSERT_TRUE(arena) << arena.error().message;
    ASSERT_EQ(code_of(pools_->begin_adopting(Pools::kMaxPools, options("last"))), 0);
  }
  EXPECT_EQ(make(options("a"))->number(), 1);
  EXPECT_EQ(make(options("b"))->number(), 2);
}

TEST_F(PoolsTest, WithoutItsDiskAnAdoptedPoolServesAndStays) {
  make(options("a"));
  Pools next(surroundings());
  ASSERT_EQ(code_of(next.begin_adopting(1, spilling("a"))), 0);
  ASSERT_EQ(code_of(next.adopt(1, spilling("a"))), 0);
  const auto pool = next.find("a");
  ASSERT_NE(pool, nullptr);
  EXPECT_EQ(pool->disk().tier(), nullptr);
  ASSERT_NE(pool->disk().away(), nullptr);
  EXPECT_EQ(code_of(next.remove("a")), EBUSY) << "its names would come back with the disk";
  EXPECT_EQ(code_of(next.set_spill(pool, spilling("a"))), EBUSY);
  EXPECT_FALSE(test::exists(disk_ / "spill")) << "a successor makes no disk";
}

}  // namespace kvcachefs::pools_test
