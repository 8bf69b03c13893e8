// A pool's disk and its catalog are opened together: made, known again, refused, taken over, looked at.
#include "tier/pool/open_disk_tier.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>

#include "base/clock.h"
#include "base/risky_read.h"
#include "tests/support/catalogs.h"
#include "tests/support/pools_test.h"
#include "tier/disk/spill_orders.h"
#include "tier/disk/spill_superblock.h"

namespace kvcachefs::open_disk_tier_test {

class OpenDiskTierTest : public test::PoolsTest {
 protected:
  void TearDown() override {
    if (next_)
      for (const auto& pool : next_->all())
        if (pool->disk().tier() != nullptr) pool->disk().tier()->close();
    PoolsTest::TearDown();
  }
  // 0 or the errno; what() has the message.
  int heard(const Result<void>& result) {
    message_ = result ? "" : result.error().message;
    return result ? 0 : result.error().code;
  }
  int open(Pool& pool, const PoolOptions& options, Attaching how = Attaching::kNew) {
    return heard(open_disk_tier(pool, options, how));
  }
  int open(const PoolOptions& options) { return open(pool(), options); }
  int probe() { return heard(probe_disk_tier(spilling("p"))); }
  int look() { return heard(look_at_disk_tier(spilling("p"))); }
  bool is_said(const std::string& words) const { return message_.find(words) != std::string::npos; }

  Pool& pool() {
    if (pool_ == nullptr) pool_ = make(options("p"));
    return *pool_;
  }
  // The pool goes, and what it had on its disk stays.
  void end() {
    if (pool_->disk().tier() != nullptr) pool_->disk().tier()->close();
    ASSERT_TRUE(pools_->remove("p"));
    pool_.reset();
    pools_->reap();
  }
  void make_disk() {
    ASSERT_EQ(open(spilling("p")), 0) << message_;
    end();
  }
  // As the next process has it, which opens its disk afterwards.
  Pool& adopted() {
    const uint16_t number = pool().number();
    EXPECT_TRUE(next_.emplace(surroundings()).begin_adopting(number, options("p")));
    EXPECT_TRUE(next_->adopt(number, options("p")));
    return *next_->find("p");
  }
  bool is_in(Pool& its, const char* name) {
    return ::faccessat(its.inodes().directory(its.root_ino())->fd, name, F_OK, 0) == 0;
  }

  std::string spill() const { return spilling("p").spill_path; }
  std::string catalog() const { return default_catalog_path(spilling("p"), false); }
  std::unique_ptr<Catalog> open_catalog() const {
    auto opened = Catalog::open(catalog());
    if (!opened) throw std::runtime_error(opened.error().message);
    return std::move(*opened);
  }
  std::string setting(std::string_view name) const { return open_catalog()->setting(name)->value_or("none"); }
  void put_setting(std::string_view name, const std::string& value) const {
    EXPECT_TRUE(open_catalog()->put_setting(name, value));
  }
  // An entry of the pool, as its catalog has it.
  void commit_entry() const {
    const CatalogContent content{.size_bytes = 1, .checksum = {}, .version = 1, .extents = {{1, 1}}};
    EXPECT_TRUE(open_catalog()->commit(std::vector<CatalogChange>{
        PutNode{test::file_node(2)}, PutName{kCatalogRoot, "f", 2}, PutContent{2, content}}));
  }

  std::string message_;
  std::shared_ptr<Pool> pool_;
  std::optional<Pools> next_;
};

TEST_F(OpenDiskTierTest, ADiskThatBoundsThePoolIsSaid) {
  const auto logged = [this](PoolOptions options) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(open(options), 0) << message_;
    std::string text = testing::internal::GetCapturedStderr();
    end();
    return text;
  };
  PoolOptions its = spilling("p");
  its.spill_size_bytes = its.size_bytes - kMiB;
  EXPECT_NE(logged(its).find("smaller than its memory"), std::string::npos);
  its.durability = Durability::kNone;
  EXPECT_EQ(logged(its).find("smaller than its memory"), std::string::npos);
  its.durability = Durability::kSync;
  EXPECT_NE(logged(its).find("under durability sync"), std::string::npos);
}

TEST_F(OpenDiskTierTest, ANewDiskIsMadeWithACatalogBesideIt) {
  ASSERT_EQ(open(spilling("p")), 0) << message_;
  EXPECT_NE(pool().disk().tier(), nullptr);
  EXPECT_EQ(std::filesystem::file_size(spill()), 4 * kMiB);
  EXPECT_EQ(look(), 0);
  end();
  EXPECT_EQ(setting(kSpillUuidSetting).size(), sizeof(Uuid));
}

TEST_F(OpenDiskTierTest, WhatItHasComesBack) {
  make_disk();
  commit_entry();
  ASSERT_EQ(open(spilling("p")), 0) << message_;
  EXPECT_TRUE(is_in(pool(), "f"));
}

TEST_F(OpenDiskTierTest, WithoutThemThePoolIsAsItWas) {
  PoolOptions nowhere = spilling("p");
  nowhere.spill_path = disk_ / "missing/spill";
  nowhere.catalog_path = disk_ / "catalog";
  EXPECT_EQ(open(nowhere), ENOENT);
  EXPECT_TRUE(message_.starts_with("pool p: ") && is_said(nowhere.spill_path)) << message_;
  PoolOptions uncatalogued = spilling("p");
  uncatalogued.catalog_path = disk_ / "missing/catalog";
  EXPECT_EQ(open(uncatalogued), ENOENT);
  EXPECT_TRUE(message_.starts_with("pool p: ") && is_said(uncatalogued.catalog_path)) << message_;
  EXPECT_FALSE(test::exists(spill())) << "the catalog comes first";
  EXPECT_EQ(pool().disk().tier(), nullptr);
  EXPECT_EQ(open(spilling("p")), 0) << message_;
}

TEST_F(OpenDiskTierTest, AStartThatWasCutShortKnowsItsDisk) {
  PoolOptions small = spilling("p");
  small.spill_size_bytes = 1;
  EXPECT_EQ(open(small), EINVAL);
  const std::string promised = setting(kNewSpillUuidSetting);
  EXPECT_EQ(promised.size(), sizeof(Uuid));
  make_disk();
  EXPECT_EQ(setting(kSpillUuidSetting), promised);
  // The disk has been made, and the catalog has not heard of it.
  put_setting(kSpillUuidSetting, "");
  put_setting(kNewSpillUuidSetting, promised);
  EXPECT_EQ(probe(), 0) << message_;
  make_disk();
  EXPECT_EQ(setting(kSpillUuidSetting), promised);
}

TEST_F(OpenDiskTierTest, ADiskOfAnotherCatalogIsTakenByForceAlone) {
  make_disk();
  const std::string before = setting(kSpillUuidSetting);
  std::filesystem::remove_all(catalog());
  EXPECT_EQ(open(spilling("p")), ESTALE);
  EXPECT_TRUE(is_said("pool p: " + spill())) << message_;
  PoolOptions forced = spilling("p");
  forced.spill_force = true;
  EXPECT_EQ(open(forced), 0) << message_;
  end();
  EXPECT_NE(setting(kSpillUuidSetting), before);
}

TEST_F(OpenDiskTierTest, ACatalogOfAnotherDiskIsClearedByForceAlone) {
  make_disk();
  commit_entry();
  std::filesystem::remove(spill());
  EXPECT_EQ(open(spilling("p")), ENODATA);
  EXPECT_FALSE(test::exists(spill()));
  PoolOptions forced = spilling("p");
  forced.spill_force = true;
  EXPECT_EQ(open(forced), 0) << message_;
  EXPECT_FALSE(is_in(pool(), "f")) << "the new disk does not hold it";
}

TEST_F(OpenDiskTierTest, AnAdoptedPoolGetsItsDisk) {
  make_disk();
  commit_entry();
  Pool& its = adopted();
  EXPECT_EQ(open(its, spilling("p"), Attaching::kAdopted), 0) << message_;
  EXPECT_EQ(its.disk().tier(), nullptr) << "in use before the catalog agrees with the files";
  ASSERT_TRUE(its.recovery().begin_attaching_adopted(spilling("p")));
  EXPECT_NE(its.disk().tier(), nullptr);
}

TEST_F(OpenDiskTierTest, ForAnAdoptedPoolNothingIsMadeOrForced) {
  PoolOptions forced = spilling("p");
  forced.spill_force = true;
  Pool& its = adopted();
  EXPECT_EQ(open(its, forced, Attaching::kAdopted), ENOENT);
  EXPECT_TRUE(is_said("pool p: ") && is_said(catalog())) << message_;
  EXPECT_FALSE(test::exists(catalog()) || test::exists(spill()));
  make_disk();
  const std::string known = setting(kSpillUuidSetting);
  std::filesystem::rename(spill(), disk_ / "elsewhere");
  EXPECT_EQ(open(its, forced, Attaching::kAdopted), ENODATA);
  EXPECT_FALSE(test::exists(spill()));
  const std::string not_its_own(4 * kMiB, 'x');
  test::write_file(spill(), not_its_own);
  EXPECT_NE(open(its, forced, Attaching::kAdopted), 0);
  EXPECT_TRUE(test::read_file(spill()) == not_its_own);
  EXPECT_EQ(its.disk().tier(), nullptr);
  EXPECT_EQ(setting(kSpillUuidSetting), known);
}

// Another catalog lies where the pool's was: what its files say is on the disk is not in it.
TEST_F(OpenDiskTierTest, ForAnAdoptedPoolACatalogThatKnowsNoDiskIsRefused) {
  (void)open_catalog();
  Pool& its = adopted();
  EXPECT_EQ(open(its, spilling("p"), Attaching::kAdopted), ESTALE);
  EXPECT_TRUE(is_said(catalog())) << message_;
  EXPECT_FALSE(test::exists(spill()));
  const std::string zeros(4 * kMiB, '\0');
  std::ofstream(spill(), std::ios::binary) << zeros;
  EXPECT_EQ(open(its, spilling("p"), Attaching::kAdopted), ESTALE);
  EXPECT_TRUE(test::read_file(spill()) == zeros);
  EXPECT_EQ(its.disk().tier(), nullptr);
}

TEST_F(OpenDiskTierTest, AnAdoptedPoolsCutDiskIsRefused) {
  make_disk();
  std::filesystem::resize_file(spill(), 2 * kMiB);
  EXPECT_EQ(open(adopted(), spilling("p"), Attaching::kAdopted), EIO);
  EXPECT_EQ(std::filesystem::file_size(spill()), 2 * kMiB);
  EXPECT_EQ(probe(), EIO);
  EXPECT_EQ(look(), EIO);
}

TEST_F(OpenDiskTierTest, ACatalogThatIsHeldIsWaitedForHalfASecond) {
  make_disk();
  Pool& its = adopted();
  const auto held = open_catalog();
  EXPECT_EQ(probe(), EBUSY);
  const uint64_t begun_ns = now_ns();
  EXPECT_EQ(open(its, spilling("p"), Attaching::kAdopted), EBUSY);
  EXPECT_GE(now_ns() - begun_ns, 500'000'000u);
  EXPECT_TRUE(is_said(catalog())) << message_;
}

TEST_F(OpenDiskTierTest, AProbeFindsWhatATakeoverWouldAndGivesItBack) {
  EXPECT_EQ(probe(), ENOENT);
  EXPECT_FALSE(test::exists(catalog()));
  make_disk();
  EXPECT_EQ(probe(), 0) << message_;
  EXPECT_EQ(probe(), 0) << message_;
  ASSERT_EQ(open(spilling("p")), 0) << message_;
  EXPECT_EQ(probe(), EBUSY);
  end();
  const std::string known = setting(kSpillUuidSetting);
  put_setting(kSpillUuidSetting, std::string(sizeof(Uuid), 'x'));
  EXPECT_EQ(probe(), ESTALE);
  put_setting(kSpillUuidSetting, known);
  std::filesystem::remove(spill());
  EXPECT_NE(probe(), 0);
  EXPECT_FALSE(test::exists(spill()));
}

TEST_F(OpenDiskTierTest, ALookNeedsNoLocks) {
  EXPECT_EQ(look(), ENOENT);
  EXPECT_TRUE(message_.starts_with("pool p: its catalog " + catalog() + " cannot be opened")) << message_;
  ASSERT_EQ(open(spilling("p")), 0) << message_;
  EXPECT_EQ(look(), 0) << message_;
  end();
  std::filesystem::rename(spill(), disk_ / "elsewhere");
  EXPECT_EQ(look(), ENOENT);
  EXPECT_TRUE(message_.starts_with("pool p: " + spill())) << message_;
  test::write_file(spill(), std::string(4 * kMiB, 'x'));
  EXPECT_EQ(look(), EUCLEAN);
}

// In a child, because the handlers of a death are the process's.
TEST_F(OpenDiskTierTest, ACatalogThatHasEndedAProcessIsTriedAgainWhenItIsSaid) {
  make_disk();
  Pool& its = adopted();
  EXPECT_EQ(test::in_child([&] {
              RiskyRead::note_deaths_in(disk_ / "deaths", true);
              {
                const std::string what = catalog();
                const RiskyRead reading(what);
                RiskyRead::note_death();
              }
              if (probe() != EUCLEAN || !is_said(catalog())) return 1;
              if (open(its, spilling("p"), Attaching::kAdopted) != EUCLEAN) return 2;
              try_catalog_again(spilling("p"));
              return probe() == 0 ? 0 : 3;
            }),
            0);
}

}  // namespace kvcachefs::open_disk_tier_test
