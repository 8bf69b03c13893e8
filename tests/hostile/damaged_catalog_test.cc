// A catalog with changed pages (a bit that has flipped, a disk that does not return them, a file that was
// truncated) ends the process that reads it, because LMDB reads its pages where they are mapped and trusts
// them. Its pool loses the disk tier; other pools lose nothing, and the mount stays.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "tests/support/disk_tier.h"
#include "tests/support/files.h"

namespace kvcachefs::test {
namespace {

constexpr size_t kPageBytes = 4096;
// The following are offsets in LMDB's page header and a flag.
constexpr size_t kFlagsAt = 10;
constexpr size_t kEntriesEndAt = 12;
constexpr size_t kEntriesAt = 16;
constexpr uint16_t kLeaf = 2;

class DamagedCatalogTest : public DiskTierTest {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the daemon ends by a fault here, which is what a sanitizer reports";
#endif
    // Pool m is in memory only. A mount that no process can serve is given up at once.
    ::setenv("KVCACHEFS_DAEMON_ARGS", "--pool m:size=16M -o give_up_after=1", 1);
    DiskTierTest::SetUp();
    if (IsSkipped()) return;
    start();
    ::unsetenv("KVCACHEFS_DAEMON_ARGS");
    ASSERT_EQ(error_name(store(mount().path("m") + "/memory", pattern(1, 100'000))), "ok");
    fill_pool("cold", 4, 65536);
    make_all_cold();
    ASSERT_EQ(error_name(store(path("clean"), pattern(2, 65536))), "ok");
    EXPECT_TRUE(becomes("dirty_entries", 0));
  }
  void TearDown() override {
    ::unsetenv("KVCACHEFS_DAEMON_ARGS");
    DiskTierTest::TearDown();
  }

  std::string cold(int i) {
    return path("cold-" + std::to_string(i));
  }
  std::string catalog() const {
    return spill_file() + ".catalog/data.mdb";
  }

  // damage_leaves() makes the entries of each leaf page point far behind the page.
  void damage_leaves() {
    const File file(catalog(), O_RDWR);
    std::array<char, kPageBytes> page{};
    int leaves = 0;
    for (off_t at = 2 * kPageBytes; ::pread(file.fd(), page.data(), kPageBytes, at) > 0; at += kPageBytes) {
      uint16_t flags = 0, end = 0;
      std::memcpy(&flags, &page[kFlagsAt], sizeof flags);
      std::memcpy(&end, &page[kEntriesEndAt], sizeof end);
      if (flags != kLeaf || end <= kEntriesAt || end > kPageBytes) continue;
      std::memset(&page[kEntriesAt], 0xff, end - kEntriesAt);
      ASSERT_EQ(::pwrite(file.fd(), page.data(), kPageBytes, at), static_cast<ssize_t>(kPageBytes));
      ++leaves;
    }
    EXPECT_GT(leaves, 0);
  }

  void kill_server() {
    const pid_t before = mount().serving_pid();
    ASSERT_EQ(::kill(before, SIGKILL), 0);
    EXPECT_TRUE(eventually([&] { return mount().serving_pid() > 0 && mount().serving_pid() != before; }));
  }

  void expect_only_the_disk_is_missed() {
    EXPECT_TRUE(read_file(mount().path("m") + "/memory") == pattern(1, 100'000));
    EXPECT_TRUE(becomes("disk_away", 1));
    EXPECT_TRUE(read_file(path("clean")) == pattern(2, 65536));
    EXPECT_EQ(error_name(store(path("new"), pattern(3, 65536))), "ok");
    EXPECT_TRUE(read_file(path("new")) == pattern(3, 65536));
    EXPECT_EQ(error_name(store(mount().path("m") + "/new", pattern(4, 65536))), "ok");
    EXPECT_TRUE(mount().log().contains(spill_file() + ".catalog")) << "nobody says which it is";
  }
};

TEST_F(DamagedCatalogTest, EndsNoTakeover) {
  damage_leaves();
  kill_server();
  expect_only_the_disk_is_missed();
  std::string content;
  for (int i = 0; i < 4; ++i) EXPECT_EQ(error_name(load(cold(i), &content)), "EIO");
  kill_server();
  expect_only_the_disk_is_missed();
}

TEST_F(DamagedCatalogTest, EndsOneProcessThatWritesIt) {
  damage_leaves();
  const File directory(mount().path(), O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 8; ++i) (void)store(path("more-" + std::to_string(i)), pattern(5, 65536));
  (void)::fsync(directory.fd());
  expect_only_the_disk_is_missed();
}

TEST_F(DamagedCatalogTest, MayBeCutOffWhileItIsUsed) {
  ASSERT_EQ(::truncate(catalog().c_str(), kPageBytes), 0);
  const File directory(mount().path(), O_RDONLY | O_DIRECTORY);
  for (int i = 0; i < 8; ++i) (void)store(path("more-" + std::to_string(i)), pattern(5, 65536));
  (void)::fsync(directory.fd());
  expect_only_the_disk_is_missed();
}

// The catalog's file is whole again when the mount is started anew.
TEST_F(DamagedCatalogTest, IsReadAgainByAnotherStart) {
  const File directory(mount().path(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(::fsync(directory.fd()), 0);
  const std::string sound = read_file(catalog());
  damage_leaves();
  kill_server();
  expect_only_the_disk_is_missed();
  kill();
  write_file(catalog(), sound);
  start();
  for (int i = 0; i < 4; ++i) EXPECT_EQ(difference(i, read_file(cold(i))), "");
}

}  // namespace
}  // namespace kvcachefs::test
