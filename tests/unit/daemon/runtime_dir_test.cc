#include "daemon/runtime_dir.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <set>

#include "tests/support/disks.h"
#include "tests/support/files.h"
#include "tests/support/mount.h"

namespace kvcachefs::runtime_dir_test {

TEST(RuntimeDirName, EachMountPointHasItsOwn) {
  EXPECT_EQ(RuntimeDir::directory_of("/run/kv", "/mnt/kv"), "/run/kv/mnt-kv.mount");
  EXPECT_EQ(RuntimeDir::directory_of("/run/kv", "/"), "/run/kv/-.mount");
  EXPECT_EQ(RuntimeDir::directory_of("/run/kv", "/a-b c"), "/run/kv/a\\x2db\\x20c.mount");
  EXPECT_EQ(RuntimeDir::directory_of("/run/kv", "/\xc3\xbc"), "/run/kv/\\xc3\\xbc.mount");
  std::set<std::string> names;
  for (const char* path : {"/a/b", "/a-b", "/a\\x2db", "/a.b", "/a_b", "/a b", "/a\nb", "/A/b"})
    EXPECT_TRUE(names.insert(RuntimeDir::directory_of("", path)).second) << path;
  for (const std::string& name : names) EXPECT_EQ(name.rfind('/'), 0u) << "it is one name";
}

class RuntimeDirTest : public ::testing::Test {
 protected:
  void SetUp() override { KVCACHEFS_SKIP_IF(::geteuid() == 0 ? std::string() : std::string("root")); }
  Result<RuntimeDir> claim() { return RuntimeDir::claim(runtime_dir_, "/mnt/kv"); }
  int code_of_claim() {
    const auto claimed = claim();
    return claimed ? 0 : claimed.error().code;
  }
  void mount_in(const std::string& name) {
    if (!test::exists(directory_ + "/" + name)) test::make_directory(directory_ + "/" + name);
    ASSERT_EQ(::mount("tmpfs", (directory_ + "/" + name).c_str(), "tmpfs", 0, "size=64k"), 0);
  }

  test::DiskDirectory place_;
  const std::string runtime_dir_ = place_ / "run";
  const std::string directory_ = RuntimeDir::directory_of(runtime_dir_, "/mnt/kv");
};

TEST_F(RuntimeDirTest, IsTheDaemonsAloneAndGoesWithIt) {
  {
    const auto claimed = claim();
    ASSERT_TRUE(claimed) << claimed.error().message;
    EXPECT_EQ(claimed->pools_directory(), directory_);
    struct stat attributes {};
    ASSERT_EQ(::stat(directory_.c_str(), &attributes), 0);
    EXPECT_EQ(attributes.st_mode & 0777, 0700u);
    const test::File other(directory_, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    EXPECT_EQ(::flock(other.fd(), LOCK_EX | LOCK_NB), -1);
    EXPECT_EQ(errno, EWOULDBLOCK);
  }
  EXPECT_FALSE(test::exists(directory_));
  EXPECT_EQ(code_of_claim(), 0) << "it can be claimed anew";
}

TEST_F(RuntimeDirTest, AMovedOneDoesNotRemoveIt) {
  std::optional<RuntimeDir> moved;
  {
    auto claimed = claim();
    ASSERT_TRUE(claimed);
    moved.emplace(std::move(*claimed));
  }
  EXPECT_TRUE(test::exists(directory_));
  moved.reset();
  EXPECT_FALSE(test::exists(directory_));
}

TEST_F(RuntimeDirTest, WhereOthersMayWriteIsNoPlaceForIt) {
  test::make_directory(runtime_dir_);
  const auto code_with = [&](mode_t mode, uid_t uid) {
    EXPECT_EQ(::chmod(runtime_dir_.c_str(), mode), 0);
    EXPECT_EQ(::chown(runtime_dir_.c_str(), uid, 0), 0);
    return code_of_claim();
  };
  EXPECT_EQ(code_with(0777, 0), EPERM);
  EXPECT_EQ(code_with(0720, 0), EPERM);
  EXPECT_EQ(code_with(0702, 0), EPERM);
  EXPECT_EQ(code_with(0700, 5), EPERM) << "another user's";
  EXPECT_EQ(code_with(01777, 0), 0) << "as /tmp is";
  EXPECT_EQ(code_with(0755, 0), 0);
  test::make_directory(directory_);
  ASSERT_EQ(::chown(directory_.c_str(), 5, 0), 0);
  EXPECT_EQ(code_of_claim(), EPERM) << "another user was first";
}

TEST_F(RuntimeDirTest, WhatADeadDaemonHasMountedIsCleanedUp) {
  test::make_directory(runtime_dir_, 0700);
  test::make_directory(directory_, 0700);
  mount_in("dead");
  mount_in("dead");  // twice
  auto claimed = claim();
  ASSERT_TRUE(claimed) << claimed.error().message;
  EXPECT_TRUE(test::mounts_below(directory_).empty());
  EXPECT_FALSE(test::exists(directory_ + "/dead"));
  mount_in("kept");
  mount_in("kept too");
  mount_in("other");
  claimed->clean_up({directory_ + "/kept", directory_ + "/kept too"});
  EXPECT_EQ(test::mounts_below(directory_).size(), 2u);
  claimed->clean_up();
  EXPECT_TRUE(test::mounts_below(directory_).empty());
}

TEST_F(RuntimeDirTest, PoolsWithoutTheirDiskAreNoted) {
  {
    const auto claimed = claim();
    ASSERT_TRUE(claimed);
    EXPECT_TRUE(claimed->pools_without_disk().empty());
    claimed->note_pools_without_disk({"a", "b c"});
    EXPECT_EQ(claimed->pools_without_disk(), (std::vector<std::string>{"a", "b c"}));
    claimed->note_pools_without_disk({"d"});
    EXPECT_EQ(claimed->pools_without_disk(), std::vector<std::string>{"d"});
    claimed->note_pools_without_disk({});
    EXPECT_FALSE(test::exists(directory_ + "/without_disk"));
    claimed->note_pools_without_disk({"e"});
    test::write_file(claimed->deadly_reads(), "x");
  }
  EXPECT_FALSE(test::exists(directory_)) << "with all that was noted";
}

}  // namespace kvcachefs::runtime_dir_test
