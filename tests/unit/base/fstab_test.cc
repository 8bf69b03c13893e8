#include "base/fstab.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "tests/support/disks.h"
#include "tests/support/files.h"

namespace kvcachefs::fstab_test {

class Fstab : public ::testing::Test {
 protected:
  Fstab() {
    std::filesystem::create_directories(place_ / "data/deeper");
    std::filesystem::create_directory_symlink(place_ / "data", place_ / "link");
    test::write_file(file_, "# two disks and a swap\n/dev/a " + place_ / "data" + "/ ext4 nofail 0 0\n" +
                                "/dev/b " + place_ / "data/deeper" + " xfs noauto 0 0\n" +
                                "/dev/c none swap sw 0 0\n/dev/d / ext4 defaults 0 1\n");
  }
  std::string refusal(const std::string& path) {
    const auto checked = check_is_mounted(path, file_, mounts_);
    if (checked) return "";
    EXPECT_EQ(checked.error().code, ENODEV);
    return checked.error().message;
  }
  void mounted(const std::string& directory) {
    mounts_.push_back({"8:1", "/", place_ / directory, "rw", "ext4", "/dev/a"});
  }

  const test::DiskDirectory place_;
  const std::string file_ = place_ / "fstab";
  std::vector<MountPoint> mounts_;
};

TEST_F(Fstab, HasAMountPointThatNothingIsMountedAt) {
  EXPECT_EQ(refusal(place_ / "data/x/spill"), place_ / "data/x/spill" +
                                                  ": the file system that /etc/fstab has for " +
                                                  place_ / "data" + " is not mounted");
  EXPECT_NE(refusal(place_ / "data"), "");
  EXPECT_NE(refusal(place_ / "link/spill"), "") << "by a symbolic link";
  mounted("data");
  EXPECT_EQ(refusal(place_ / "data/x/spill"), "");
  EXPECT_EQ(refusal(place_ / "link/spill"), "");
}

TEST_F(Fstab, TheDeepestCounts) {
  mounted("data");
  EXPECT_NE(refusal(place_ / "data/deeper/spill"), "");
  mounted("data/deeper");
  EXPECT_EQ(refusal(place_ / "data/deeper/spill"), "");
}

TEST_F(Fstab, SaysNothingOfOtherPlaces) {
  EXPECT_EQ(refusal(place_ / "database/spill"), "");
  EXPECT_EQ(refusal(place_ / "spill"), "") << "/ is mounted, also where the mount table does not show it";
  EXPECT_EQ(refusal(""), "");
  EXPECT_TRUE(check_is_mounted(place_ / "data", place_ / "missing", {}));
}

}  // namespace kvcachefs::fstab_test
