// What has a name takes memory of the kernel and of the daemon, which counts against the pool's size: a user
// who makes nothing but names takes no more than the pool has.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <optional>
#include <string>

#include "alloc/memory_arena.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"
#include "tests/support/pool_pressure.h"

namespace kvcachefs::test {
namespace {

constexpr uint64_t kPoolBytes = 32 * kMiB;

class NamesBudgetTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_NEED_DAEMON(); }
  void start(const std::string& more = "") {
    mount_.emplace(MountOptions{.pools = {"p:size=32M,entry_size=256K" + more}});
  }
  void TearDown() override {
    if (!mount_) return;
    if (HasFailure()) report_daemon_log(*mount_);
    mount_->stop();
  }
  std::string path(const std::string& kind, int number) const {
    return mount_->path() + "/" + kind + std::to_string(number);
  }
  uint64_t stat(std::string_view name) const { return static_cast<uint64_t>(mount_->stat_value(name)); }
  struct statvfs space() const {
    struct statvfs status {};
    EXPECT_EQ(::statvfs(mount_->path().c_str(), &status), 0);
    return status;
  }
  uint64_t used_inodes() const { return space().f_files - space().f_ffree; }
  // As many as there is room for, up to `most`.
  template <class Make>
  int make_all(int most, Make make) {
    int made = 0;
    while (made < most && make(made) == 0) ++made;
    return made;
  }
  void expect_budget_kept() {
    EXPECT_TRUE(
        eventually([&] { return stat("used_bytes") >= (used_inodes() - kFreeInodes) * kInodeBytes; }));
    EXPECT_LE(stat("used_bytes"), kPoolBytes);
    const struct statvfs now = space();
    EXPECT_LE((now.f_blocks - now.f_bfree) * now.f_frsize, kPoolBytes);
    EXPECT_GE((now.f_blocks - now.f_bfree) * now.f_frsize, (used_inodes() - kFreeInodes) * kInodeBytes);
  }

  std::optional<Mount> mount_;
};

TEST_F(NamesBudgetTest, DirectoriesTakeHalfOfThePoolAtMost) {
  start();
  for (int i = 0; i < 200; ++i) ASSERT_EQ(error_name(store(path("e", i), pattern(i, 256 << 10))), "ok") << i;
  const int made = make_all(20'000, [&](int i) { return ::mkdir(path("d", i).c_str(), 0755); });
  EXPECT_EQ(made, 20'000) << "the oldest leave for others";
  EXPECT_GT(used_inodes(), 8000u);
  EXPECT_LT(used_inodes(), 18'000u);
  EXPECT_TRUE(eventually([&] { return stat("used_bytes") <= kPoolBytes; })) << stat("used_bytes");
  expect_budget_kept();
  for (int i = 0; i < made; ++i)
    (void)::rmdir(path("d", i).c_str());  // after a minute they leave by themselves
  for (int i = 0; i < 200; ++i) ASSERT_EQ(error_name(store(path("f", i), pattern(i, 256 << 10))), "ok") << i;
  EXPECT_GT(stat("entries"), 100u);
}

// Else names above a watermark would have all data evicted, again and again, which lowers them by nothing.
TEST_F(NamesBudgetTest, TheWatermarksAreOfWhatIsBesideThem) {
  start(",watermarks=40:60");
  for (int i = 0; i < 12'000; ++i) ASSERT_EQ(::mkdir(path("d", i).c_str(), 0755), 0) << i;
  for (int i = 0; i < 60; ++i) ASSERT_EQ(error_name(store(path("e", i), pattern(i, 256 << 10))), "ok") << i;
  EXPECT_TRUE(all_closed(*mount_));
  EXPECT_GT(stat("entries"), 20u);
  expect_budget_kept();
}

TEST_F(NamesBudgetTest, APoolIsNotMadeTooSmallForThem) {
  start();
  for (int i = 0; i < 8000; ++i) ASSERT_EQ(::mkdir(path("d", i).c_str(), 0755), 0) << i;
  for (int i = 0; i < 40; ++i) ASSERT_EQ(error_name(store(path("e", i), pattern(i, 256 << 10))), "ok") << i;
  EXPECT_EQ(error_name(write_once(mount_->place_to_write("size"), "8M\n")), "EBUSY");
  EXPECT_NE(mount_->log().find("pool p: its names need a size of "), std::string::npos) << mount_->log();
  EXPECT_EQ(error_name(write_once(mount_->place_to_write("size"), "32M\n")), "ok");
  EXPECT_EQ(stat("entries"), 40u);
  EXPECT_EQ(error_name(write_once(mount_->place_to_write("size"), "16M\n")), "ok");
  EXPECT_LE(stat("used_bytes"), 16 * kMiB);
  EXPECT_GT(stat("entries"), 10u);
}

TEST_F(NamesBudgetTest, LinksAndXattrsCountToo) {
  start();
  ASSERT_EQ(error_name(store(path("e", 0), "x")), "ok");
  const int links =
      make_all(40'000, [&](int i) { return ::link(path("e", 0).c_str(), path("l", i).c_str()); });
  EXPECT_GT(links, 3000);
  expect_budget_kept();
  for (int i = 0; i < links; ++i)
    (void)::unlink(path("l", i).c_str());  // the entry may have left for an inode
  const std::string value(60'000, 'v');
  constexpr int kSets = 4000;
  const int sets = make_all(kSets, [&](int i) {
    const std::string file = path("x", i / 4);
    if (i % 4 == 0) {
      const File made(file, O_WRONLY | O_CREAT);
    }
    return set_xattr(file, "user.a" + std::to_string(i % 4), value);
  });
  EXPECT_EQ(sets, kSets) << "the coldest entries leave for others";
  EXPECT_GT(stat("discards"), kSets / 8u) << "more than the pool holds";
  expect_budget_kept();
}

// A store with attributes needs inodes besides its memory: entries leave for them, and none fails.
TEST_F(NamesBudgetTest, EntriesLeaveForTheAttributesOfOthers) {
  start();
  const std::string value(64'000, 'v');
  for (int i = 0; i < 1200; ++i) {
    ASSERT_EQ(error_name(store(path("e", i), pattern(i, 64 << 10))), "ok") << i;
    for (const char* name : {"user.a", "user.b", "user.c"})
      ASSERT_EQ(error_name(set_xattr(path("e", i), name, value)), "ok") << i << " " << name;
  }
  EXPECT_GT(stat("discards"), 0u);
  EXPECT_GT(stat("entries"), 30u);
  expect_budget_kept();
}

}  // namespace
}  // namespace kvcachefs::test
